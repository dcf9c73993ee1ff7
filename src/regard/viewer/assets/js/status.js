// One sentence over the page, while there is something to say of the server.

export function createStatus(node) {
  return (sentence) => {
    node.hidden = sentence === null;
    node.textContent = sentence ?? "";
  };
}

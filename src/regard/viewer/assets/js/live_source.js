// Asks the server that the page came from. Where it does not answer, says so once, waits, and asks again.

const PATIENCE = 1000, HEARTBEAT = 3000; // milliseconds

export function liveSource(report) {
  let back = null; // while the server is away: resolved when it answers again

  async function ask(path, signal) {
    for (;;) {
      let answer;
      try {
        answer = await fetch(path, { signal, cache: "no-store", credentials: "omit", referrerPolicy: "no-referrer" });
      } catch (error) {
        if (signal?.aborted) throw error;
        await (back ??= wait());
        continue;
      }
      if (answer.ok) return answer;
      const said = (await answer.text()).trim();
      report(`The server cannot answer: ${said}`);
      throw new Error(said);
    }
  }

  async function wait() {
    report("The server has stopped answering: what is on the page stays, and the rest comes when it is back.");
    for (;;) {
      await new Promise((resume) => setTimeout(resume, PATIENCE));
      const answer = await fetch("pulse", { cache: "no-store" }).catch(() => null);
      if (answer?.ok) break;
      if (answer) report("Another view is served at this address now: open the address that it printed.");
    }
    report(null);
    back = null;
  }

  setInterval(() => {
    if (!back && document.visibilityState === "visible") ask("pulse").catch(() => null);
  }, HEARTBEAT);

  return {
    header: async () => (await ask("header")).json(),
    json: async (path) => (await ask(path)).json(),
    blob: async (name) => new Uint8Array(await (await ask(name)).arrayBuffer()),
    // The numbers of an answer; null where the server says that there is nothing to tell.
    floats: async (path, signal) => {
      const answer = await ask(path, signal);
      return answer.status === 204 ? null : new Float32Array(await answer.arrayBuffer());
    },
  };
}

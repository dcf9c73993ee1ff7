// The text that the tokens make together, with the token that each of its characters belongs to.

const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u;

// Whether tokens are word pieces, which leave out the spaces of the text and mark what continues a word by `##`.
export function arePieces(tokens) {
  return !tokens.some((token) => token === "" || /^\s|\s$/.test(token)) && tokens.some((token) => [...token].length > 1);
}

// Lower case, with any white space as one space. Between word pieces a space is put where two words meet.
export function joined(tokens) {
  const pieces = arePieces(tokens);
  const units = [], owners = [];
  let last = "";
  tokens.forEach((token, at) => {
    const continued = pieces && token.startsWith("##") && token.length > 2;
    const characters = [...(continued ? token.slice(2) : token)];
    if (pieces && !continued && spaced(last, characters[0])) add(" ", at);
    for (const character of characters) add(character, at);
  });

  function add(character, at) {
    const blank = /\s/.test(character);
    if (blank && last === " ") return;
    last = blank ? " " : character;
    for (const unit of last.toLowerCase().split("")) {
      units.push(unit);
      owners.push(at);
    }
  }
  return { text: units.join(""), owners, pieces };
}

// What somebody looks for, written as `joined` writes the text.
export function wanted(phrase, pieces) {
  const characters = [...phrase.replace(/\s+/g, " ")];
  const kept = pieces ? characters.filter((c, i) => c !== " " || spaced(characters[i - 1], characters[i + 1])) : characters;
  return kept.map((character) => character.toLowerCase()).join("");
}

// Whether a space tells two words apart here: not beside punctuation, nor in scripts that set none.
function spaced(before, after) {
  return [before, after].every((c) => c && /[\p{L}\p{M}\p{N}]/u.test(c) && !UNSPACED.test(c));
}

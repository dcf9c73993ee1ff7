// Whole rows and columns of single weights, asked for one at a time and kept for a while.

const MOST_KEPT = 48;

export class LiveRows {
  constructor(source, view, arrived) {
    Object.assign(this, { source, view, arrived });
    this.kept = new Map(); // address to a promise
    this.there = new Map(); // address to what has arrived
  }

  // The weights and logits of a query over all keys; below 0 and −∞ where it may not attend.
  async row({ layer, head }, query, aside) {
    const numbers = await this.ask(`row/${layer}/${head}/${query}${aside ? "?aside=1" : ""}`);
    const half = numbers.length / 2;
    return { weights: numbers.subarray(0, half), logits: numbers.subarray(half) };
  }

  // The weights of a key, from every query.
  async column({ layer, head }, key, aside) {
    return this.ask(`column/${layer}/${head}/${key}${aside ? "?aside=1" : ""}`);
  }

  // What one pair says: weight, logit, and rank among the keys of its query; null until its row has come.
  pair(loaded, query, key, aside) {
    const numbers = this.there.get(`row/${loaded.layer}/${loaded.head}/${query}${aside ? "?aside=1" : ""}`);
    if (!numbers) {
      this.later(loaded, query, aside);
      return null;
    }
    const half = numbers.length / 2;
    const logits = numbers.subarray(half), logit = logits[key];
    let rank = 1, among = 0;
    logits.forEach((other, at) => {
      if (other !== -Infinity) among++;
      if (other > logit || (other === logit && at < key)) rank++;
    });
    return { weight: numbers[key], logit, rank, among };
  }

  // A pointer passes over many rows: only one that it rests on is asked for.
  later(loaded, query, aside) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.row(loaded, query, aside).then(this.arrived, () => null), 60);
  }

  ask(path) {
    if (!this.kept.has(path)) {
      const coming = this.source.floats(path);
      this.kept.set(path, coming);
      coming.then((numbers) => this.there.set(path, numbers), () => this.forget(path));
      if (this.kept.size > MOST_KEPT) this.forget(this.kept.keys().next().value);
    }
    return this.kept.get(path);
  }

  forget(path) {
    this.kept.delete(path);
    this.there.delete(path);
  }
}

// Reads the blobs of a view: zlib streams of byte planes, as docs/view-format.md lays down.

export async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export function fromBase64(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

// Takes one array after another off an inflated blob.
export class PlaneReader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  integers(count, width) {
    const out = width === 2 ? new Uint16Array(count) : new Uint32Array(count);
    for (let plane = 0; plane < width; plane++) {
      const shift = 8 * plane;
      for (let i = 0; i < count; i++) out[i] |= this.bytes[this.at + i] << shift;
      this.at += count;
    }
    return out;
  }

  // Codes are square roots of values in units of `top`.
  values(count, top) {
    const codes = this.integers(count, 2);
    return Float32Array.from(codes, (code) => top * (code / 65535) * (code / 65535));
  }
}

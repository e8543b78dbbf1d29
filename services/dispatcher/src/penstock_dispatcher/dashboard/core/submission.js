/**
 * A submission file: a zip, not compressed, with `job.json`, the document, and `sources.zip`, the code; see
 * `penstock.submission.file`.
 */
const ENTRY = 0x04034b50;
const HEAD = 30;
const MAX_BYTES = 80 * 2 ** 20;

/** @param {File} file @returns {Promise<{job: any, sources: Blob}>} */
export async function readSubmission(file) {
  if (file.size > MAX_BYTES) throw new Error("It is larger than any submission may be.");
  const parts = entries(await file.arrayBuffer());
  const [job, sources] = [parts.get("job.json"), parts.get("sources.zip")];
  if (!job || !sources) throw new Error("It is no submission file. Make one: penstock submit FILE --write NAME.penstock");
  return { job: JSON.parse(new TextDecoder().decode(job)), sources: new Blob([sources], { type: "application/zip" }) };
}

/** The stored entries of a zip, which lie one behind the other. @param {ArrayBuffer} data @returns {Map<string, Uint8Array>} */
function entries(data) {
  const view = new DataView(data);
  const found = new Map();
  let at = 0;
  while (at + HEAD <= data.byteLength && view.getUint32(at, true) === ENTRY) {
    const [method, size] = [view.getUint16(at + 8, true), view.getUint32(at + 18, true)];
    const name = new TextDecoder().decode(new Uint8Array(data, at + HEAD, view.getUint16(at + 26, true)));
    const begin = at + HEAD + view.getUint16(at + 26, true) + view.getUint16(at + 28, true);
    if (method !== 0 || begin + size > data.byteLength) break;
    found.set(name, new Uint8Array(data, begin, size));
    at = begin + size;
  }
  return found;
}

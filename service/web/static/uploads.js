// Uploads traces in parts: a break costs one part, and the server gets the digest of every file.
import { Sha256 } from "./sha256.js";

const PART_BYTES = 4 * 1024 * 1024;
const TRIES = 5;

async function call(address, options = {}) {
  const answer = await fetch(address, options);
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  const error = new Error(body.detail ?? `the server answered ${answer.status}`);
  error.isFinal = answer.status < 500 && answer.status !== 409 && answer.status !== 429;
  throw error;
}

const sendJson = (address, value) =>
  call(address, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) });

/** Returns the value for a session's `traces`. */
export async function uploadTraces(form, files) {
  const [line, bar] = [form.querySelector("[data-upload]"), form.querySelector("progress")];
  const whole = files.reduce((sum, file) => sum + file.size, 0) || 1;
  let before = 0;
  bar.hidden = false;
  const { id, reference } = await sendJson("/v1/traces", { name: files.length === 1 ? files[0].name : `${files.length} files` });
  const [names, digests] = [distinct(files.map((file) => file.name)), {}];
  for (const [index, file] of files.entries()) {
    const name = names[index];
    digests[name] = await uploadFile(id, file, name, (done) => {
      bar.value = (before + done) / whole;
      line.textContent = `Uploading ${name}, ${Math.round(100 * bar.value)}%`;
    });
    before += file.size;
  }
  line.textContent = "Verifying the upload";
  await sendJson(`/v1/traces/${id}/complete`, { files: digests });
  return reference;
}

/** Files of several folders may have one name, and on the server they lie in one folder. */
function distinct(names) {
  return new Set(names).size === names.length ? names : names.map((name, index) => `${index}-${name}`);
}

async function uploadFile(id, file, name, tell) {
  const digest = new Sha256();
  let offset = 0;
  do {
    const part = file.slice(offset, offset + PART_BYTES);
    await withRetries(() => call(`/v1/traces/${id}/files/${encodeURIComponent(name)}?offset=${offset}`, { method: "PUT", body: part }));
    digest.update(new Uint8Array(await part.arrayBuffer()));
    offset += part.size;
    tell(offset);
  } while (offset < file.size);
  return digest.hex();
}

/** Sending a part is idempotent, so it may be retried. */
async function withRetries(send) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await send();
    } catch (error) {
      if (error.isFinal || attempt === TRIES) throw error;
      await new Promise((resolve) => setTimeout(resolve, 500 * 2 ** attempt));
    }
  }
}

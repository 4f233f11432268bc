/** Bodies: requests that are read whole, and responses that are gathered up to a bound. */

import { timerMs } from "../retry.js";
import type { Rules } from "./options.js";
import { invalid, type Problem, requestTimeout, tooLarge } from "./problem.js";

/** The first bytes of a body, which are not counted, so that slow requests cannot block small ones. */
const UPLOAD_FREE_BYTES = 16 * 1024;

/** The bytes of incomplete request bodies in one layer. */
export class Uploads {
  bytes = 0;
}

/** Why a body was not read: a refusal, or too many of them at once. */
export class Unread extends Error {
  /** `undefined` where there is no room. */
  readonly problem: Problem | undefined;

  constructor(problem: Problem | undefined) {
    super("the body was not read");
    this.problem = problem;
  }
}

/** Chunks of a request, as Node's streams and the web's are both read. */
export type Chunks = AsyncIterable<Uint8Array>;

/** Reads a body whole, within its bounds of size, time and memory. Throws {@link Unread}. */
export async function readWhole(
  rules: Rules,
  uploads: Uploads,
  chunks: Chunks,
  declaredBytes: number,
): Promise<Uint8Array> {
  if (declaredBytes > rules.requestBytesMax) {
    throw new Unread(tooLarge(rules.requestBytesMax));
  }
  const parts: Uint8Array[] = [];
  let bytes = 0;
  let counted = 0;
  const iterator = chunks[Symbol.asyncIterator]();
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    const end = (): void => reject(new Unread(requestTimeout(rules.requestTimeoutMs)));
    timer = setTimeout(end, timerMs(rules.requestTimeoutMs));
  });
  late.catch(() => undefined);
  try {
    for (;;) {
      const next = await Promise.race([iterator.next(), late]);
      if (next.done) {
        return Buffer.concat(parts, bytes);
      }
      bytes += next.value.length;
      if (bytes > rules.requestBytesMax) {
        throw new Unread(tooLarge(rules.requestBytesMax));
      }
      const beyond = Math.max(0, bytes - UPLOAD_FREE_BYTES) - counted;
      if (uploads.bytes + beyond > rules.uploadsBytesMax) {
        throw new Unread(undefined);
      }
      uploads.bytes += beyond;
      counted += beyond;
      parts.push(next.value);
    }
  } catch (error) {
    if (error instanceof Unread) {
      throw error;
    }
    const detail = "the connection ended before the end of the body; nothing was done";
    throw new Unread(invalid(detail));
  } finally {
    clearTimeout(timer);
    uploads.bytes -= counted;
    void iterator.return?.().then(undefined, () => undefined);
  }
}

/** A response's body: whole, too large to be stored but still to be sent, or interrupted. */
export type Gathered =
  | { whole: Uint8Array }
  | { stream: ReadableStream<Uint8Array> }
  | { broken: unknown };

/** Reads the body of a response up to a bound; a larger one goes on as a stream. */
export async function gather(response: Response, max: number): Promise<Gathered> {
  if (response.body === null) {
    return { whole: new Uint8Array() };
  }
  const parts: Uint8Array[] = [];
  let bytes = 0;
  try {
    // Throws where somebody else reads it, or has read it.
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        return { whole: Buffer.concat(parts, bytes) };
      }
      parts.push(value);
      bytes += value.length;
      if (bytes > max) {
        return { stream: rest(parts, reader) };
      }
    }
  } catch (error) {
    return { broken: error };
  }
}

function rest(
  parts: Uint8Array[],
  reader: ReadableStreamDefaultReader<Uint8Array>,
): ReadableStream<Uint8Array> {
  return new ReadableStream({
    async pull(controller) {
      const part = parts.shift();
      if (part !== undefined) {
        controller.enqueue(part);
        return;
      }
      const { done, value } = await reader.read();
      if (done) {
        controller.close();
      } else {
        controller.enqueue(value);
      }
    },
    cancel: (reason) => reader.cancel(reason),
  });
}

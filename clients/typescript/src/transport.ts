/**
 * One HTTP request to the broker: headers, timeout, abort, and what an answer means.
 *
 * Nothing is retried here. Bodies are never logged, and errors do not quote them.
 */

import {
  ConnectionError,
  errorOf,
  type HapaxError,
  InvalidError,
  msOf,
  type Problem,
  strangeAnswer,
  TimeoutError,
} from "./errors.js";
import { timerMs } from "./retry.js";

/** The part of `fetch` that is used, for a dispatcher or a certificate of one's own. */
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

/** A request to the broker. */
export interface Call {
  method?: "GET" | "POST" | "PUT" | "DELETE";
  /** Under `/v1`, or absolute where it begins with `//`. */
  path: string;
  headers?: Record<string, string>;
  /** Sent as JSON. */
  json?: unknown;
  /** JSON that is written already. */
  text?: string;
  /** Sent as they are. */
  bytes?: Uint8Array;
  timeoutMs: number;
  signal?: AbortSignal | undefined;
  /**
   * Whether a success is what the broker answers to this call; by default any object of JSON. What
   * is not did not come from the broker, so that nobody knows what became of the request.
   */
  isAnswer?: (body: unknown, status: number, text: string) => boolean;
}

/** Whether a value is an object of JSON. */
export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Whether a value is an object with a list of objects under this name. */
export function hasList(name: string): (value: unknown) => boolean {
  return (value) => {
    const list = isObject(value) ? value[name] : undefined;
    return Array.isArray(list) && list.every(isObject);
  };
}

/** Whether a value is an object with texts under these names. */
export function hasTexts(...names: string[]): (value: unknown) => boolean {
  return (value) => isObject(value) && names.every((name) => typeof value[name] === "string");
}

/** The answer to a request that was not refused. */
export interface Reply<T> {
  status: number;
  headers: Headers;
  body: T;
}

/** Sends requests to one broker. */
export class Transport {
  readonly url: string;
  readonly #token: string | undefined;
  readonly #fetch: Fetch;

  constructor(url: string, token: string | undefined, send: Fetch | undefined) {
    const parsed = new URL(url);
    if (parsed.protocol !== "http:" && parsed.protocol !== "https:") {
      throw new TypeError(`the address of a broker begins with http:// or https://, not ${url}`);
    }
    if (parsed.username !== "" || parsed.password !== "") {
      throw new TypeError("the address of a broker has no user and password: give it a token");
    }
    if (parsed.search !== "" || parsed.hash !== "") {
      throw new TypeError(`the address of a broker has no query and no fragment: ${url}`);
    }
    if (token !== undefined && !/^[\x21-\x7e]+$/.test(token)) {
      throw new TypeError("the token has characters that no token has, such as a line break");
    }
    this.url = parsed.href.replace(/\/+$/, "");
    this.#token = token;
    this.#fetch = send ?? ((address, init) => fetch(address, init));
  }

  /** Returns the answer. Throws a {@link HapaxError}, or the reason of the caller's signal. */
  async call<T>(call: Call): Promise<Reply<T>> {
    call.signal?.throwIfAborted();
    const controller = new AbortController();
    const abort = (): void => controller.abort();
    let isTimeout = false;
    const timer = setTimeout(() => {
      isTimeout = true;
      abort();
    }, timerMs(call.timeoutMs));
    call.signal?.addEventListener("abort", abort, { once: true });
    try {
      return await this.#answer<T>(call, controller.signal);
    } catch (error) {
      call.signal?.throwIfAborted();
      throw isTimeout ? this.#timedOut(call) : error;
    } finally {
      clearTimeout(timer);
      call.signal?.removeEventListener("abort", abort);
    }
  }

  async #answer<T>(call: Call, signal: AbortSignal): Promise<Reply<T>> {
    const request = this.#request(call, signal);
    let response: Response;
    let text: string;
    try {
      response = await this.#fetch(this.#address(call.path), request);
      text = await response.text();
    } catch (error) {
      throw this.#unreachable(error);
    }
    const { status, headers } = response;
    if (!response.ok) {
      throw refusal(response, text);
    }
    const isJson = headers.get("content-type")?.includes("json") ?? false;
    const body = isJson ? parse(text) : undefined;
    if (!(call.isAnswer ?? isObject)(body, status, text)) {
      throw strangeAnswer(`status ${status} without an answer of a broker`, { status });
    }
    return { status, headers, body: body as T };
  }

  #address(path: string): string {
    return path.startsWith("//") ? `${this.url}${path.slice(1)}` : `${this.url}/v1${path}`;
  }

  #request(call: Call, signal: AbortSignal): RequestInit {
    const headers: Record<string, string> = { ...call.headers };
    if (this.#token !== undefined) {
      headers.authorization = `Bearer ${this.#token}`;
    }
    if (call.headers !== undefined) {
      checkHeaders(headers);
    }
    const init: RequestInit = { method: call.method ?? "GET", headers, signal, redirect: "error" };
    if (call.bytes !== undefined) {
      init.body = call.bytes;
    } else if (call.text !== undefined || call.json !== undefined) {
      headers["content-type"] = "application/json";
      init.body = call.text ?? JSON.stringify(call.json);
    }
    return init;
  }

  #timedOut(call: Call): HapaxError {
    const limit = Math.round(call.timeoutMs);
    const detail = `no answer within ${limit} ms from ${this.url}; a retry under the same key is safe`;
    return new TimeoutError(detail);
  }

  #unreachable(error: unknown): HapaxError {
    const detail = `cannot reach the broker at ${this.url}: ${reason(error)}`;
    return new ConnectionError(detail, { cause: error });
  }
}

/** A header that cannot be sent is the caller's mistake, and no broken connection. */
function checkHeaders(headers: Record<string, string>): void {
  try {
    new Headers(headers);
  } catch (error) {
    throw new InvalidError(`a header cannot be sent: ${(error as Error).message}`);
  }
}

/** The innermost cause, which is the most specific: "connect ECONNREFUSED" and not "fetch failed". */
function reason(error: unknown): string {
  let last = "";
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    last = cause.message || (cause as NodeJS.ErrnoException).code || cause.name || last;
    if (cause instanceof AggregateError && cause.errors[0] instanceof Error) {
      return cause.errors[0].message;
    }
  }
  return last || String(error);
}

function refusal(response: Response, text: string): HapaxError {
  const { status, headers } = response;
  const retryAfterMs = retryAfter(headers);
  const requestId = headers.get("request-id") ?? undefined;
  const isProblem = (headers.get("content-type") ?? "").includes("json");
  const problem = isProblem ? problemOf(text) : undefined;
  if (problem?.code !== undefined) {
    // The body is exact to the millisecond, the header to the second.
    const exact = msOf(problem.retry_after_ms) ?? retryAfterMs;
    return errorOf(problem, { status, retryAfterMs: exact, requestId });
  }
  // Not the broker, but something in front of it.
  const code = CODES_OF_STATUS[status] ?? (status >= 500 ? "unavailable" : "invalid");
  const detail = `status ${status} without a problem document: not a Hapax broker, or a proxy`;
  return errorOf({ code, detail }, { status, retryAfterMs, requestId, isForeign: true });
}

const CODES_OF_STATUS: Record<number, string> = {
  401: "unauthorized",
  403: "forbidden",
  408: "unavailable",
  413: "too_large",
  425: "unavailable",
  429: "rate_limited",
};

function problemOf(text: string): Problem | undefined {
  const value = parse(text);
  return isObject(value) && typeof value.code === "string" ? value : undefined;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Seconds or a date (RFC 9110), which is counted by the clock of the server that wrote it. */
function retryAfter(headers: Headers): number | undefined {
  const value = headers.get("retry-after")?.trim() ?? "";
  if (/^\d+$/.test(value)) {
    return Number(value) * 1_000;
  }
  const date = dateMs(value);
  const now = dateMs(headers.get("date") ?? "") ?? Date.now();
  return date === undefined ? undefined : Math.max(0, date - now);
}

function dateMs(text: string): number | undefined {
  const date = /^[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} [\d:]{8} GMT$/.test(text)
    ? Date.parse(text)
    : Number.NaN;
  return Number.isNaN(date) ? undefined : date;
}

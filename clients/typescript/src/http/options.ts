/** The settings of the layer, with their defaults, and every bound of it. */

import type { Queue } from "../queue.js";
import { Route, type RouteOptions } from "./route.js";
import { CREDENTIALS } from "./scope.js";
import { HEADERS_BYTES_MAX } from "./stored.js";

/**
 * What to do with a key after its response: `keep` stores the response, `release` frees the key
 * because nothing has happened, `in_doubt` parks it in a queue with `on_lost = park` and frees it
 * elsewhere.
 */
export type Remember = "keep" | "release" | "in_doubt";

/** How a request was answered. */
export type Outcome =
  | "fresh"
  | "replayed"
  | "in_progress"
  | "conflict"
  | "missing_key"
  | "malformed_key"
  | "refused"
  | "bypassed"
  | "in_doubt"
  | "lease_lost"
  | "unavailable"
  | "unprotected"
  | "overloaded"
  | "misconfigured";

/** What became of a key after the handler. */
export type Settlement = "kept" | "not_kept" | "released" | "in_doubt" | "lost" | "failed";

/** An event for an observer, for metrics. */
export type IdempotencyEvent =
  | { type: "answered"; outcome: Outcome }
  | { type: "settled"; how: Settlement }
  | { type: "broker_failed"; code: string };

/** The settings of the layer. */
export interface IdempotencyOptions {
  /** Patterns of routes where a key is required: `POST /charges`. */
  required?: string[] | undefined;
  /** Patterns of routes where a request with a key is protected: `PUT,PATCH /orders/{order}`. */
  optional?: string[] | undefined;
  /** Routes with settings of their own. If two match a request, the first counts. */
  routes?: RouteOptions[] | undefined;
  /**
   * The caller of a request, by its headers: callers of different tenants have separate keys.
   * `undefined` refuses the request with 401. Authenticate in an outer layer, and do not use a token
   * that may change between two retries. Without this, all callers share their keys, and the headers
   * of {@link CREDENTIALS} are compared with those of the first request.
   */
  tenant?:
    | ((request: { headers: Headers; method: string; path: string }) => string | undefined)
    | undefined;
  /**
   * Takes the tenant from this header, which must occur once: for services behind a proxy that
   * authenticates callers and sets it. Instead of `tenant`.
   */
  tenantHeader?: string | undefined;
  /** Separates the keys of this layer from those of others on the same queue. */
  namespace?: string | undefined;
  /** Headers that a retry must repeat; by default `Content-Type`, and without a tenant credentials. */
  fingerprintHeaders?: string[] | undefined;
  /** Which responses are stored: by default 2xx, 3xx and 4xx without 408, 425 and 429. */
  policy?: ((status: number, headers: Headers) => Remember) | undefined;
  /** The headers of a response that are stored; by default all that are not of one hop or caller. */
  headers?: string[] | undefined;
  /** What a request gets while the broker cannot be reached: 503, or the handler unprotected. */
  onUnavailable?: "close" | "open" | undefined;
  /** How long a key stays claimed when this process dies; 30 s by default. */
  leaseMs?: number | undefined;
  /** The longest wait of `Prefer: wait`; 30 s by default, at most 60. */
  waitMsMax?: number | undefined;
  /** How long a client may take to send a protected request; 30 s by default. */
  requestTimeoutMs?: number | undefined;
  /** How long a request waits for the broker before it counts as unreachable; 5 s by default. */
  brokerTimeoutMs?: number | undefined;
  /** The `Retry-After` while the first request is in progress; 1 s by default. */
  retryAfterMs?: number | undefined;
  /** The largest body of a request with a key; 1 MiB by default. Larger ones get 413. */
  requestBytesMax?: number | undefined;
  /** The largest body of a response that is stored; 1 MiB less 32 KiB by default. */
  responseBytesMax?: number | undefined;
  /** The memory for incomplete request bodies; 256 MiB by default. Further ones get 503. */
  uploadsBytesMax?: number | undefined;
  /** The most requests with keys in progress; 1,024 by default. Further ones get 503. */
  operationsMax?: number | undefined;
  /** A name that the history of a key shows, of at most 64 bytes. */
  worker?: string | undefined;
  /** Called with what happens, for metrics. What it throws is ignored. */
  observe?: ((event: IdempotencyEvent) => void) | undefined;
}

type WithDefault =
  | "namespace"
  | "policy"
  | "onUnavailable"
  | "leaseMs"
  | "waitMsMax"
  | "requestTimeoutMs"
  | "brokerTimeoutMs"
  | "retryAfterMs"
  | "requestBytesMax"
  | "responseBytesMax"
  | "uploadsBytesMax"
  | "operationsMax"
  | "observe";

/** The settings with their defaults. */
export interface Rules extends Readonly<Defaults> {
  readonly queue: Queue;
  readonly routes: Route[];
  readonly tenant: IdempotencyOptions["tenant"];
  /** In small letters. */
  readonly tenantHeader: string | undefined;
  /** Sorted, in small letters. */
  readonly compared: string[];
  /** Headers that `Connection` must not name. */
  readonly deciding: Set<string>;
  readonly kept: Set<string> | undefined;
  readonly worker: string | undefined;
}

type Defaults = { [K in WithDefault]: NonNullable<IdempotencyOptions[K]> };

const NUMBERS: string[] = [
  "leaseMs",
  "waitMsMax",
  "requestTimeoutMs",
  "brokerTimeoutMs",
  "retryAfterMs",
  "requestBytesMax",
  "responseBytesMax",
  "uploadsBytesMax",
  "operationsMax",
] satisfies WithDefault[];

/** Checks settings, and adds what was left out. Throws a `TypeError` that says what is wrong. */
export function rulesOf(queue: Queue, options: IdempotencyOptions): Rules {
  const routes = [
    ...(options.required ?? []).map((pattern) => new Route({ pattern })),
    ...(options.optional ?? []).map((pattern) => new Route({ pattern, required: false })),
    ...(options.routes ?? []).map((route) => new Route(route)),
  ];
  if (routes.length === 0) {
    throw new TypeError('no route is protected: name one, such as required: ["POST /charges"]');
  }
  const patterns = routes.map(({ pattern }) => pattern);
  const twice = patterns.find((pattern, index) => patterns.indexOf(pattern) !== index);
  if (twice !== undefined) {
    throw new TypeError(`the route ${twice} is given twice`);
  }
  for (const [name, value] of Object.entries(options)) {
    const isNumber = NUMBERS.includes(name) && value !== undefined;
    if (isNumber && !(typeof value === "number" && value >= 0)) {
      throw new TypeError(`${name} must be a number that is not negative, not ${value}`);
    }
  }
  const leaseMs = options.leaseMs ?? 30_000;
  if (!(leaseMs >= 100 && leaseMs <= 12 * 60 * 60 * 1_000)) {
    throw new TypeError(`a lease must last 100 ms to 12 h, not ${leaseMs} ms`);
  }
  const tenantHeader = options.tenantHeader?.toLowerCase();
  if (options.tenant !== undefined && tenantHeader !== undefined) {
    throw new TypeError("tenant and tenantHeader exclude each other");
  }
  const credentials = (options.tenant ?? tenantHeader) === undefined ? CREDENTIALS : [];
  const given = options.fingerprintHeaders ?? [...credentials, "content-type"];
  const compared = [...new Set(given.map((name) => name.toLowerCase()))].sort();
  const keyHeaders = routes.flatMap(({ keyHeader }) => keyHeader ?? []);
  const { headers } = options;
  const requestBytesMax = options.requestBytesMax ?? 1024 * 1024;
  return {
    queue,
    routes,
    tenant: options.tenant,
    tenantHeader,
    namespace: options.namespace ?? "",
    compared,
    deciding: new Set([...compared, ...keyHeaders, ...(tenantHeader ? [tenantHeader] : [])]),
    policy: options.policy ?? usual,
    kept: headers && new Set(headers.map((name) => name.toLowerCase())),
    onUnavailable: options.onUnavailable ?? "close",
    leaseMs,
    waitMsMax: Math.min(options.waitMsMax ?? 30_000, 60_000),
    requestTimeoutMs: options.requestTimeoutMs ?? 30_000,
    brokerTimeoutMs: options.brokerTimeoutMs ?? 5_000,
    retryAfterMs: options.retryAfterMs ?? 1_000,
    requestBytesMax,
    responseBytesMax: options.responseBytesMax ?? 1024 * 1024 - HEADERS_BYTES_MAX,
    uploadsBytesMax: Math.max(options.uploadsBytesMax ?? 256 * 1024 * 1024, requestBytesMax),
    operationsMax: options.operationsMax ?? 1_024,
    worker: options.worker,
    observe: quiet(options.observe),
  };
}

/** An observer must not fail a request. */
function quiet(observe: IdempotencyOptions["observe"]): (event: IdempotencyEvent) => void {
  return (event) => {
    try {
      observe?.(event);
    } catch {
      // It is for metrics only.
    }
  };
}

/** What says how the operation ended is kept; what says that it was not processed frees the key. */
export function usual(status: number): Remember {
  const isPassing = status === 408 || status === 425 || status === 429;
  return status >= 200 && status < 500 && !isPassing ? "keep" : "release";
}

/**
 * Errors: one class for each code of the broker, and two for what goes wrong on the way to it.
 *
 * Under one key a retry is always safe, whatever the error; `retryable` says whether it may help.
 */

/** The codes of the broker: `GET /errors` explains each. */
export type Code =
  | "invalid"
  | "missing_key"
  | "malformed_key"
  | "unauthorized"
  | "forbidden"
  | "no_such_queue"
  | "no_such_key"
  | "conflict"
  | "in_flight"
  | "too_old"
  | "undated_key"
  | "lease_lost"
  | "invalid_config"
  | "too_large"
  | "over_quota"
  | "rate_limited"
  | "store_full"
  | "unavailable"
  | "internal";

/** A refusal in JSON: a problem document, or the error of one message or settle. */
export interface Problem {
  code?: string;
  detail?: string;
  status?: number;
  retryable?: boolean;
  request_id?: string;
  retry_after_ms?: number | null;
  differs?: string[];
  id?: string;
  accepted_at?: string;
  state?: string;
  attempts?: number;
  deadline?: string | null;
}

/** What is known about an error besides its text. */
export interface ErrorOptions {
  status?: number | undefined;
  retryAfterMs?: number | undefined;
  requestId?: string | undefined;
  problem?: Problem | undefined;
  /** Whether the refusal has no problem document, so that it did not come from the broker. */
  isForeign?: boolean | undefined;
  cause?: unknown;
}

/** Any error of the broker, or on the way to it. */
export abstract class HapaxError extends Error {
  abstract readonly code: Code;
  /** Whether the same request may succeed later. */
  readonly retryable: boolean = false;
  /** What is wrong with this request in particular. */
  readonly detail: string;
  /** The status of the answer, if there was one. */
  readonly status: number | undefined;
  /** The time after which the broker asked to try again. */
  readonly retryAfterMs: number | undefined;
  /** The id under which the broker logged the request. */
  readonly requestId: string | undefined;
  /** Whether something on the way refused the request, and not the broker. */
  readonly isForeign: boolean;
  /**
   * The generated key of a message that was sent without one, if it is unknown whether it was
   * accepted: sent again under this key, it is accepted once.
   */
  readonly key: string | undefined;

  constructor(detail: string, options: ErrorOptions = {}) {
    super(detail, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = new.target.name;
    this.detail = detail;
    this.status = options.status ?? options.problem?.status;
    this.retryAfterMs = options.retryAfterMs ?? msOf(options.problem?.retry_after_ms);
    this.requestId = options.requestId ?? options.problem?.request_id;
    this.isForeign = options.isForeign ?? false;
  }

  /** The same error, with the generated key of one message. @internal */
  withKey(key: string): this {
    // A copy: one error may be the answer to many messages.
    const copy = Object.create(Object.getPrototypeOf(this), Object.getOwnPropertyDescriptors(this));
    return Object.defineProperty(copy, "key", { value: key, enumerable: true });
  }
}

/** A field, a header or an argument is not valid. */
export class InvalidError extends HapaxError {
  readonly code = "invalid";
}

/** The queue requires a key. */
export class MissingKeyError extends HapaxError {
  readonly code = "missing_key";
}

/** A key has 1 to 255 bytes without control characters. */
export class MalformedKeyError extends HapaxError {
  readonly code = "malformed_key";
}

/** The token is missing, unknown or revoked. */
export class UnauthorizedError extends HapaxError {
  readonly code = "unauthorized";
}

/** The token does not allow this. */
export class ForbiddenError extends HapaxError {
  readonly code = "forbidden";
}

/** There is no such queue. */
export class NoSuchQueueError extends HapaxError {
  readonly code = "no_such_queue";
}

/** The key is unknown. */
export class NoSuchKeyError extends HapaxError {
  readonly code = "no_such_key";
}

/** The key was used for another operation. */
export class ConflictError extends HapaxError {
  readonly code = "conflict";
  /** What differs from the first message: `body`, `group` or `fingerprint`. */
  readonly differs: readonly string[];
  /** The id of the first message under the key. */
  readonly id: string | undefined;
  readonly acceptedAt: Date | undefined;

  constructor(detail: string, options: ErrorOptions = {}) {
    const { differs: told } = options.problem ?? {};
    const differs = Array.isArray(told) ? told.filter((part) => typeof part === "string") : [];
    super(differs.length === 0 ? detail : `${detail} (${differs.join(", ")} differs)`, options);
    this.differs = differs;
    this.id = options.problem?.id;
    this.acceptedAt = dateOf(options.problem?.accepted_at);
  }
}

/** Another caller has claimed the key. */
export class InFlightError extends HapaxError {
  readonly code = "in_flight";
  override readonly retryable = true;
  /** The refusal as the broker wrote it: with the id, the state and the deadline of the key. */
  readonly problem: Problem;

  constructor(detail: string, options: ErrorOptions = {}) {
    super(detail, options);
    this.problem = options.problem ?? {};
  }
}

/** The operation is older than the queue's retention: it may have been done before. */
export class TooOldError extends HapaxError {
  readonly code = "too_old";
}

/** The queue accepts only keys with a date. */
export class UndatedKeyError extends HapaxError {
  readonly code = "undated_key";
}

/** Another worker has the message now, or it is finished. */
export class LeaseLostError extends HapaxError {
  readonly code = "lease_lost";

  constructor(
    detail = "another worker has the message now, or it is finished",
    options: ErrorOptions = {},
  ) {
    super(detail, options);
  }
}

/** The configuration of a queue is refused, or `ifMatch` does not match. */
export class InvalidConfigError extends HapaxError {
  readonly code = "invalid_config";
}

/** A body, a batch or a result is above its limit. */
export class TooLargeError extends HapaxError {
  readonly code = "too_large";
}

/** A limit of the queue or the tenant is reached. */
export class OverQuotaError extends HapaxError {
  readonly code = "over_quota";
  override readonly retryable = true;
}

/** More messages per second than the queue or the tenant allows. */
export class RateLimitedError extends HapaxError {
  readonly code = "rate_limited";
  override readonly retryable = true;
}

/** The broker's disk is full. */
export class StoreFullError extends HapaxError {
  readonly code = "store_full";
  override readonly retryable = true;
}

/** The broker cannot answer now: it is unknown whether the request was carried out. */
export class UnavailableError extends HapaxError {
  readonly code = "unavailable";
  override readonly retryable = true;
}

/** The broker cannot be reached, or the connection broke. */
export class ConnectionError extends UnavailableError {}

/** There was no answer in time. */
export class TimeoutError extends UnavailableError {}

/** The broker has an internal error. */
export class InternalError extends HapaxError {
  readonly code = "internal";
  override readonly retryable = true;
}

type ErrorClass = new (detail: string, options?: ErrorOptions) => HapaxError;

const CLASSES: Record<Code, ErrorClass> = {
  invalid: InvalidError,
  missing_key: MissingKeyError,
  malformed_key: MalformedKeyError,
  unauthorized: UnauthorizedError,
  forbidden: ForbiddenError,
  no_such_queue: NoSuchQueueError,
  no_such_key: NoSuchKeyError,
  conflict: ConflictError,
  in_flight: InFlightError,
  too_old: TooOldError,
  undated_key: UndatedKeyError,
  lease_lost: LeaseLostError,
  invalid_config: InvalidConfigError,
  too_large: TooLargeError,
  over_quota: OverQuotaError,
  rate_limited: RateLimitedError,
  store_full: StoreFullError,
  unavailable: UnavailableError,
  internal: InternalError,
};

/** The error of a refusal. A code of a newer broker counts by whether a retry may help. */
export function errorOf(problem: Problem, options: ErrorOptions = {}): HapaxError {
  const known = Object.hasOwn(CLASSES, problem.code ?? "");
  const code = known ? (problem.code as Code) : problem.retryable ? "unavailable" : "invalid";
  const detail = String(problem.detail ?? problem.code ?? "the broker gave no reason");
  return new CLASSES[code](known ? detail : `${problem.code}: ${detail}`, { ...options, problem });
}

/**
 * Whether the broker may still take what was refused. A proxy's refusal is none of the broker's,
 * except of what is too large for the proxy: that passes at no time.
 */
export function isPassing(error: HapaxError): boolean {
  return error.retryable || (error.isForeign && !(error instanceof TooLargeError));
}

/** The error of an answer that no broker writes: a proxy's page, or half of an answer. */
export function strangeAnswer(detail: string, options: ErrorOptions = {}): HapaxError {
  return new UnavailableError(`${detail}: not a Hapax broker, or a proxy`, options);
}

/** A length of time, unless it makes no sense. */
export function msOf(value: unknown): number | undefined {
  return typeof value === "number" && value >= 0 ? value : undefined;
}

/** A time of the broker. */
export function dateOf(text: string | null | undefined): Date | undefined {
  return typeof text === "string" ? new Date(text) : undefined;
}

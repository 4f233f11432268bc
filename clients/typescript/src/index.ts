/**
 * The client of Hapax: send, work, claim.
 *
 * Under one key an operation is accepted once, finished once and answered once; every retry gets the
 * first answer. Inboxes and outboxes are in `hapax/postgres`, idempotency keys for HTTP services in
 * `hapax/http`, a broker for tests in `hapax/testing` and `hapax/vitest`.
 *
 * @module
 */

export type {
  Admin,
  KeyCallOptions,
  PutOptions,
  QueueConfig,
  QueueInfo,
  QueueStats,
  Redrive,
  RedriveProgress,
} from "./admin.js";
export { Answer, type Outcome, type State } from "./answer.js";
export { type Claim, type ClaimOptions, Held } from "./claim.js";
export { type CallOptions, Client, type ClientOptions } from "./client.js";
export { Content, type Jsonable, type Payload } from "./content.js";
export { Delivery } from "./delivery.js";
export {
  type Code,
  ConflictError,
  ConnectionError,
  ForbiddenError,
  HapaxError,
  InFlightError,
  InternalError,
  InvalidConfigError,
  InvalidError,
  LeaseLostError,
  MalformedKeyError,
  MissingKeyError,
  NoSuchKeyError,
  NoSuchQueueError,
  OverQuotaError,
  RateLimitedError,
  StoreFullError,
  TimeoutError,
  TooLargeError,
  TooOldError,
  UnauthorizedError,
  UnavailableError,
  UndatedKeyError,
} from "./errors.js";
export type { KeyEvent, KeyInfo } from "./key.js";
export { derive, newKey, type Parent } from "./keys.js";
export type { Message, MessageOptions } from "./message.js";
export { type KeyOptions, Queue, type ReceiveOptions, type SendOptions } from "./queue.js";
export {
  Done,
  type EmitOptions,
  Failure,
  type FailureOptions,
  type Settle,
  type Settled,
  type WireSettle,
} from "./settle.js";
export type { Fetch } from "./transport.js";
export { Context } from "./worker/context.js";
export {
  type Handler,
  type Health,
  Worker,
  type WorkerEvent,
  type WorkerOptions,
} from "./worker/worker.js";

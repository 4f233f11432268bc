/**
 * Idempotency keys for HTTP services: handlers of the Fetch kind, Hono and Express.
 *
 * @module
 */

export {
  type ExpressRequest,
  type FetchHandler,
  type HonoContext,
  Idempotency,
} from "./adapters.js";
export type { Operation } from "./operation.js";
export type {
  IdempotencyEvent,
  IdempotencyOptions,
  Outcome,
  Remember,
  Settlement,
} from "./options.js";
export type { Head, KeyFrom, RouteOptions } from "./route.js";
export { CREDENTIALS } from "./scope.js";

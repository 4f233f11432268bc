/** The layer for handlers of the Fetch kind, for Hono and for Express. */

import type { IncomingMessage, ServerResponse } from "node:http";
import { parse as parseForm } from "node:querystring";
import type { Queue } from "../queue.js";
import type { Chunks } from "./body.js";
import { Captured } from "./captured.js";
import { Engine, type Handled } from "./idempotency.js";
import type { Operation } from "./operation.js";
import type { IdempotencyOptions } from "./options.js";
import type { Head } from "./route.js";

/** A handler of the Fetch kind. */
export type FetchHandler = (
  request: Request,
  operation: Operation | undefined,
) => Response | Promise<Response>;

/** What is used of Hono's context. */
export interface HonoContext {
  req: { raw: Request };
  res: Response;
  error?: Error | undefined;
  set(name: "operation", operation: Operation | undefined): void;
}

/** What is used of Express's request. */
export interface ExpressRequest extends IncomingMessage {
  originalUrl?: string;
  body?: unknown;
  rawBody?: Buffer;
}

/**
 * Protects routes of an HTTP service: a request that comes again under its `Idempotency-Key` gets the
 * first one's response, byte for byte, with `Idempotency-Replayed: true`.
 *
 * ```ts
 * const idempotency = new Idempotency(client.queue("http"), { required: ["POST /charges"] });
 * app.use(idempotency.hono());              // Hono
 * app.use(idempotency.express());           // Express, before the body parsers
 * serve({ fetch: idempotency.fetch(handler) });
 * ```
 */
export class Idempotency {
  readonly #engine: Engine;
  readonly #operations = new WeakMap<object, { operation: Operation; captured: Captured }>();

  /** Throws a `TypeError` where the settings are wrong. */
  constructor(queue: Queue, options: IdempotencyOptions) {
    this.#engine = new Engine(queue, options);
  }

  /** Operations in progress, including those whose clients have disconnected. */
  get running(): number {
    return this.#engine.running;
  }

  /**
   * Waits until no operation is in progress, and returns whether that is so. Call it before the
   * process ends, after it has stopped accepting requests.
   */
  drained(timeoutMs: number): Promise<boolean> {
    return this.#engine.drained(timeoutMs);
  }

  /** Wraps a handler of the Fetch kind. What it throws is thrown on. */
  fetch(handler: FetchHandler): (request: Request) => Promise<Response> {
    return (request) =>
      this.#engine.answer(fetchIncoming(request), async (operation, body) => {
        const again = body === undefined ? request : withBody(request, body);
        return { response: await handler(again, operation) };
      });
  }

  /** Middleware for Hono. The handler finds the operation in `c.get("operation")`. */
  hono(): (context: HonoContext, next: () => Promise<void>) => Promise<Response | undefined> {
    return async (context, next) => {
      const request = context.req.raw;
      let isCalled = false;
      const response = await this.#engine.answer(
        fetchIncoming(request),
        async (operation, body): Promise<Handled> => {
          isCalled = true;
          if (body !== undefined) {
            context.req.raw = withBody(request, body);
          }
          context.set("operation", operation);
          await next();
          // Hono answers what a handler threw by itself; its own exceptions are responses.
          const { error } = context;
          const isResponse = error !== undefined && "getResponse" in error;
          return error === undefined || isResponse
            ? { response: context.res }
            : { response: context.res, thrown: error };
        },
      );
      if (!isCalled) {
        return response;
      }
      if (response !== context.res) {
        // Otherwise Hono would add the headers of the old response.
        (context as { res: Response | undefined }).res = undefined;
        context.res = response;
      }
      return undefined;
    };
  }

  /**
   * Middleware for Express. It stands before the body parsers: it reads the body of a protected
   * request, and sets `req.rawBody`, and `req.body` as parsers would (JSON, forms, text, else bytes).
   * The handler finds the operation by {@link Idempotency.operation}.
   */
  express(): (
    request: ExpressRequest,
    response: ServerResponse,
    next: (error?: unknown) => void,
  ) => void {
    return (request, response, next) => {
      const captured = new Captured(response, this.#engine.rules.leaseMs);
      const answered = this.#engine.answer(
        nodeIncoming(request),
        async (operation, body): Promise<Handled> => {
          if (operation === undefined && body === undefined) {
            // Not protected: nothing stands between the handler and its client.
            captured.letGo();
            next();
            return { response: new Response() };
          }
          if (body !== undefined) {
            parseInto(request, body);
          }
          if (operation !== undefined) {
            this.#operations.set(request, { operation, captured });
          }
          next();
          return captured.handled();
        },
      );
      answered.then(
        (answer) => captured.send(answer).catch(() => captured.giveUp()),
        (error: unknown) => {
          captured.giveUp();
          if (!response.destroyed) {
            next(error);
          }
        },
      );
    };
  }

  /**
   * Error middleware for Express, to be used after the routes and before other error middleware:
   * what a handler throws leaves its operation in doubt. Without it, a thrown error is a plain 500,
   * which frees the key.
   */
  expressErrors(): (
    error: unknown,
    request: object,
    response: ServerResponse,
    next: (error?: unknown) => void,
  ) => void {
    return (error, request, _response, next) => {
      const found = this.#operations.get(request);
      if (found !== undefined) {
        found.operation.chosen ??= "in_doubt";
        // What was written before is no response.
        found.captured.fail(error);
      }
      next(error);
    };
  }

  /** The operation of a protected request of Express. */
  operation(request: object): Operation | undefined {
    return this.#operations.get(request)?.operation;
  }
}

function fetchIncoming(request: Request) {
  const url = new URL(request.url);
  const { headers } = request;
  const values = (name: string): string[] => {
    const value = headers.get(name);
    return value === null ? [] : [value];
  };
  const names = (): string[] => [...headers.keys()];
  const query = url.search === "" && request.url.endsWith("?") ? "?" : url.search;
  const head: Head = { method: request.method, path: url.pathname, query, values, names };
  const declaredBytes = Number(headers.get("content-length") ?? 0) || 0;
  const chunks = (): Chunks => request.body ?? none();
  return { head, headers, chunks, declaredBytes };
}

function nodeIncoming(request: ExpressRequest) {
  // A target may be a whole address, of which Express too reads the path.
  const target = (request.originalUrl ?? request.url ?? "/").replace(
    /^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i,
    "",
  );
  const [path = "", ...rest] = target.split("?");
  const pairs: [string, string][] = [];
  for (let index = 0; index < request.rawHeaders.length; index += 2) {
    const name = request.rawHeaders[index] as string;
    pairs.push([name.toLowerCase(), request.rawHeaders[index + 1] as string]);
  }
  const values = (name: string): string[] =>
    pairs.filter(([other]) => other === name).map(([, value]) => value);
  const names = (): string[] => pairs.map(([name]) => name);
  const query = rest.length === 0 ? "" : `?${rest.join("?")}`;
  const head: Head = { method: request.method ?? "GET", path, query, values, names };
  const declaredBytes = Number(request.headers["content-length"] ?? 0) || 0;
  // A request that is not read to its end is answered all the same.
  const chunks = (): Chunks => request.iterator({ destroyOnReturn: false });
  return { head, headers: new Headers(pairs), chunks, declaredBytes };
}

async function* none(): AsyncGenerator<Uint8Array> {}

function withBody(request: Request, body: Uint8Array): Request {
  const init: RequestInit = { method: request.method, headers: request.headers };
  if (body.length > 0) {
    init.body = Buffer.from(body);
  }
  return new Request(request.url, { ...init, signal: request.signal });
}

function parseInto(request: ExpressRequest, bytes: Uint8Array): void {
  const body = Buffer.from(bytes);
  request.rawBody = body;
  const type = request.headers["content-type"]?.split(";")[0]?.trim().toLowerCase() ?? "";
  if (type === "application/json" || type.endsWith("+json")) {
    try {
      request.body = body.length === 0 ? {} : JSON.parse(body.toString());
    } catch {
      // The handler sees the text, and can refuse it.
      request.body = body.toString();
    }
  } else if (type === "application/x-www-form-urlencoded") {
    request.body = { ...parseForm(body.toString()) };
  } else if (type.startsWith("text/")) {
    request.body = body.toString();
  } else {
    request.body = body;
  }
}

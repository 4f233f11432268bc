/**
 * A response of Node that is held back: what a handler writes is a stream, until the layer says what
 * the client gets. A client that disconnects does not disturb the handler: it does not see the end of
 * the connection before its response is sent.
 */

import type { ServerResponse } from "node:http";
import { timerMs } from "../retry.js";
import type { Handled } from "./idempotency.js";

type Callback = (error?: Error | null) => void;
type Written = string | Uint8Array;

/** What is replaced in a response, apart from its properties. */
const METHODS = ["write", "end", "writeHead", "flushHeaders", "destroy", "emit"] as const;

/** The chunks that wait to be read before a handler is asked to pause. */
const WAITING_BYTES = 256 * 1024;

export class Captured {
  readonly #response: ServerResponse;
  readonly #own: Pick<ServerResponse, (typeof METHODS)[number]>;
  readonly #idleMs: number;
  #controller: ReadableStreamDefaultController<Uint8Array> | undefined;
  #resolve: (handled: Handled) => void = () => undefined;
  #reject: (error: unknown) => void = () => undefined;
  readonly #handled: Promise<Handled>;
  /** The handler has sent its head; it has ended; it has destroyed the response. */
  #isStarted = false;
  #isEnded = false;
  #isDestroyed = false;
  /** The handler writes to its client. */
  #isFree = false;
  /** The connection has ended, and nobody was told. */
  #isClosed = false;
  /** What Node says about the response. */
  #isReallyDestroyed: boolean;
  /** Runs while a handler neither continues nor ends a response that nobody waits for. */
  #idle: NodeJS.Timeout | undefined;

  /** A response that is not ended is given up after `idleMs`, if its connection has ended. */
  constructor(response: ServerResponse, idleMs: number) {
    this.#response = response;
    this.#idleMs = idleMs;
    this.#isReallyDestroyed = response.destroyed;
    const { write, end, writeHead, flushHeaders, destroy, emit } = response;
    this.#own = { write, end, writeHead, flushHeaders, destroy, emit };
    this.#handled = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.#handled.catch(() => undefined);
    this.#replaceMethods();
    this.#replaceProperties();
  }

  /** The handler's response, as soon as its head is known. Rejects if there will be none. */
  handled(): Promise<Handled> {
    return this.#handled;
  }

  /** The handler failed: what it has begun to write is not a response. */
  fail(error: unknown): void {
    if (this.#isStarted && !this.#isEnded) {
      this.#interrupt(error);
    }
  }

  /** Takes the hands off: the handler writes to its client. */
  letGo(): void {
    if (this.#isFree) {
      return;
    }
    this.#isFree = true;
    const response = this.#response;
    for (const name of METHODS) {
      Object.assign(response, { [name]: this.#own[name] });
    }
    this.#restoreProperties();
    if (this.#isClosed) {
      this.#isClosed = false;
      process.nextTick(() => response.emit("close"));
    }
  }

  /** There is no answer: what else becomes of the response is for others to say. */
  giveUp(): void {
    this.letGo();
    if (this.#isDestroyed || this.#response.headersSent) {
      this.#response.destroy();
    }
  }

  /** Sends what the client gets. A handler that has not ended continues to write to its stream. */
  async send(answer: Response): Promise<void> {
    if (this.#isFree) {
      return;
    }
    const { write, end } = this.#response;
    this.letGo();
    const response = this.#response;
    for (const name of response.getHeaderNames()) {
      response.removeHeader(name);
    }
    response.statusCode = answer.status;
    for (const [name, value] of answer.headers) {
      response.appendHeader(name, value);
    }
    if (!response.req.complete) {
      // The rest of a request that was refused is not read.
      response.setHeader("connection", "close");
    }
    if (answer.body === null) {
      response.end();
      return;
    }
    // Those of the handler: what it still writes comes after what it has written.
    Object.assign(response, { write, end });
    const get = (): boolean => this.#isEnded;
    Object.defineProperty(response, "writableEnded", { configurable: true, get });
    response.once("close", () => this.#interrupt(new Error("the connection ended")));
    const own = this.#own as { write(chunk: Uint8Array): boolean; end(): unknown };
    for await (const chunk of answer.body as unknown as AsyncIterable<Uint8Array>) {
      own.write.call(response, chunk);
      await drained(response);
      if (response.destroyed) {
        return;
      }
    }
    own.end.call(response);
  }

  #replaceMethods(): void {
    const response = this.#response;
    response.writeHead = ((status: number, ...rest: unknown[]) => {
      response.statusCode = status;
      setHeaders(response, rest.at(-1));
      return response;
    }) as ServerResponse["writeHead"];
    response.flushHeaders = () => this.#start();
    response.write = ((chunk: Written, ...rest: unknown[]) => {
      this.#start();
      this.#enqueue(chunk, rest[0]);
      this.#called(rest);
      return (this.#controller?.desiredSize ?? 1) > 0;
    }) as ServerResponse["write"];
    response.end = ((...args: unknown[]) => {
      this.#start();
      const [chunk, encoding] = args;
      if (chunk !== undefined && chunk !== null && typeof chunk !== "function") {
        this.#enqueue(chunk as Written, encoding);
      }
      this.#isEnded = true;
      clearTimeout(this.#idle);
      this.#controller?.close();
      this.#controller = undefined;
      this.#called(args);
      return response;
    }) as ServerResponse["end"];
    response.destroy = ((error?: Error) => {
      if (this.#isEnded) {
        return response;
      }
      this.#isDestroyed = true;
      this.#interrupt(error ?? new Error("the handler destroyed its response"));
      return response;
    }) as ServerResponse["destroy"];
    const { emit } = this.#own;
    response.emit = ((event: string, ...args: unknown[]) => {
      if (event !== "close") {
        return emit.call(response, event, ...args);
      }
      this.#isClosed = true;
      this.#watch();
      return false;
    }) as ServerResponse["emit"];
  }

  /** What a handler reads to know whether it may still write. */
  #replaceProperties(): void {
    const response = this.#response;
    const own = { configurable: true, enumerable: true };
    Object.defineProperties(response, {
      headersSent: { ...own, get: () => this.#isStarted },
      writableEnded: { ...own, get: () => this.#isEnded },
      destroyed: {
        ...own,
        get: () => this.#isDestroyed,
        set: (value: boolean) => {
          this.#isReallyDestroyed = value;
        },
      },
    });
  }

  #restoreProperties(): void {
    const response = this.#response as unknown as Record<string, unknown>;
    delete response.headersSent;
    delete response.writableEnded;
    const value = this.#isReallyDestroyed;
    const own = { configurable: true, enumerable: true, writable: true, value };
    Object.defineProperty(response, "destroyed", own);
  }

  #start(): void {
    if (this.#isStarted || this.#isDestroyed) {
      return;
    }
    this.#isStarted = true;
    const response = this.#response;
    const status = response.statusCode;
    try {
      const headers = new Headers();
      for (const [name, value] of Object.entries(response.getHeaders())) {
        for (const one of Array.isArray(value) ? value : [value]) {
          headers.append(name, String(one));
        }
      }
      const hasBody = status !== 204 && status !== 205 && status !== 304;
      const body = hasBody ? this.#stream() : null;
      this.#resolve({ response: new Response(body, { status, headers }) });
    } catch (error) {
      this.#reject(error); // A status or a header that no response has.
    }
    this.#watch();
  }

  #stream(): ReadableStream<Uint8Array> {
    const source = {
      start: (controller: ReadableStreamDefaultController<Uint8Array>) => {
        this.#controller = controller;
      },
      pull: () => void this.#own.emit.call(this.#response, "drain"),
      cancel: () => {
        this.#controller = undefined;
        this.#own.emit.call(this.#response, "drain");
      },
    };
    const size = (chunk?: Uint8Array): number => chunk?.length ?? 0;
    return new ReadableStream(source, { highWaterMark: WAITING_BYTES, size });
  }

  #enqueue(chunk: Written, encoding: unknown): void {
    this.#controller?.enqueue(bytes(chunk, encoding));
    this.#watch();
  }

  #interrupt(error: unknown): void {
    clearTimeout(this.#idle);
    this.#controller?.error(error);
    this.#controller = undefined;
    this.#reject(error);
  }

  /**
   * Nobody may end a response that was begun: Express closes the connection instead where an error
   * comes after the head.
   */
  #watch(): void {
    clearTimeout(this.#idle);
    if (this.#isClosed && this.#isStarted && !this.#isEnded && this.#controller !== undefined) {
      const why = "the connection ended before the response did, and nothing more was written";
      this.#idle = setTimeout(() => this.fail(new Error(why)), timerMs(this.#idleMs));
      this.#idle.unref();
    }
  }

  #called(args: unknown[]): void {
    const callback = args.find((arg): arg is Callback => typeof arg === "function");
    if (callback !== undefined) {
      process.nextTick(callback);
    }
  }
}

/** Waits until a response takes more, or is closed. */
function drained(response: ServerResponse): Promise<void> {
  return new Promise((resolve) => {
    const go = (): void => {
      if (response.writableNeedDrain && !response.destroyed) {
        return;
      }
      response.off("drain", go);
      response.off("close", go);
      resolve();
    };
    response.on("drain", go);
    response.on("close", go);
    go();
  });
}

function bytes(chunk: Written, encoding: unknown): Uint8Array {
  // A copy: what a handler has written it may write over.
  return typeof chunk === "string"
    ? Buffer.from(chunk, typeof encoding === "string" ? (encoding as BufferEncoding) : "utf8")
    : new Uint8Array(chunk);
}

/** Headers as `writeHead` takes them: an object, a list of pairs, or a flat list. */
function setHeaders(response: ServerResponse, headers: unknown): void {
  if (Array.isArray(headers)) {
    const flat: string[] = headers.flat();
    const names = new Set<string>();
    for (let index = 0; index + 1 < flat.length; index += 2) {
      const [name, value] = [String(flat[index]), String(flat[index + 1])];
      if (!names.has(name.toLowerCase())) {
        response.removeHeader(name);
        names.add(name.toLowerCase());
      }
      response.appendHeader(name, value);
    }
  } else if (headers !== null && typeof headers === "object") {
    for (const [name, value] of Object.entries(headers)) {
      if (value !== undefined) {
        response.setHeader(name, value as string);
      }
    }
  }
}

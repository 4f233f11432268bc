/** A server in place of a broker, which answers as a test says. */

import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { onTestFinished } from "vitest";
import { Client, type ClientOptions } from "../../src/index.js";

/** A request, with its body read. */
export interface Asked {
  request: IncomingMessage;
  response: ServerResponse;
  path: string;
  body: string;
  /** Answers with JSON. */
  reply(value: unknown, status?: number, headers?: Record<string, string>): void;
}

/** Starts a server that ends with the test, and returns a client of it. */
export async function pretend(
  answer: (asked: Asked) => void,
  options: ClientOptions = {},
): Promise<Client> {
  const server = createServer((request, response) => {
    const parts: Buffer[] = [];
    request.on("data", (part: Buffer) => parts.push(part));
    request.on("end", () => {
      const body = Buffer.concat(parts).toString();
      const reply: Asked["reply"] = (value, status = 200, headers = {}) => {
        response.writeHead(status, { "content-type": "application/json", ...headers });
        response.end(JSON.stringify(value));
      };
      answer({ request, response, path: request.url ?? "", body, reply });
    });
  }).listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  return new Client(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, options);
}

/** A delivery as a broker writes it. */
export function delivered(key: string, more: object = {}): object {
  const times = { accepted_at: "2026-01-01T00:00:00Z", deadline: "2026-01-01T00:00:30Z" };
  const lease = { lease: `lease-${key}`, fence: "1", lease_ms: 30_000, attempt: 1, generation: 0 };
  return { ...times, ...lease, queue: "q", key, id: key, body: key, ...more };
}

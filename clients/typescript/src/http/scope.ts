/**
 * The identity of a request: the key of its claim, and its fingerprint. Both are those of the Rust
 * layer and of `hapax proxy`: lowercase hex of BLAKE3 over a list of texts, each preceded by its
 * length as 8 bytes, little endian.
 */

import { blake3Hex } from "../blake3.js";
import type { Head } from "./route.js";

/** Headers that identify callers: without a tenant they are compared with the first request's. */
export const CREDENTIALS = ["authorization", "cookie", "x-api-key"];

/** Headers that `Connection` must not name, whatever the route. */
const END_TO_END = new Set([
  ...CREDENTIALS,
  "idempotency-key",
  "host",
  "content-encoding",
  "content-length",
  "content-type",
  "forwarded",
  "x-forwarded-for",
  "x-forwarded-host",
  "x-forwarded-proto",
  "x-real-ip",
]);

/** The key of a claim: a digest, so that the client's key may be anything. */
export function claimKey(
  namespace: string,
  tenant: string,
  method: string,
  route: string,
  key: string,
): string {
  return digest(["hapax-http-claim-1", namespace, tenant, method, route, key]);
}

/** The fingerprint, which a retry must share with the first request. `compared` is sorted. */
export function fingerprint(head: Head, compared: string[], body: Uint8Array): string {
  const parts: (string | Uint8Array)[] = [
    "hapax-http-request-1",
    head.method,
    head.path,
    head.query,
  ];
  for (const name of compared) {
    const values = head.values(name);
    if (values.length === 0 && (name === "cookie" || name === "x-api-key")) {
      continue; // Only if they are present.
    }
    parts.push(name, String(values.length));
    parts.push(...values.map((value) => Buffer.from(value, "latin1")));
  }
  parts.push(body);
  return digest(parts);
}

/** A header that `Connection` names although it identifies the caller or the request. */
export function namedByConnection(head: Head, deciding: Set<string>): string | undefined {
  const named = head.values("connection").flatMap((value) => value.split(","));
  const names = named.map((name) => name.trim().toLowerCase());
  return names.find((name) => END_TO_END.has(name) || deciding.has(name));
}

/** How long the client wants to wait, in seconds: `Prefer: wait=SECONDS` (RFC 7240). */
export function preferredWait(head: Head): number | undefined {
  for (const preference of head.values("prefer").flatMap((value) => value.split(","))) {
    const wait = /^\s*wait\s*=\s*"?(\d+)"?\s*$/i.exec(preference.split(";")[0] ?? "");
    if (wait !== null) {
      return Math.min(Number(wait[1]), 60);
    }
  }
  return undefined;
}

function digest(parts: (string | Uint8Array)[]): string {
  const pieces = parts.flatMap((part) => {
    const bytes = typeof part === "string" ? Buffer.from(part) : part;
    const length = Buffer.alloc(8);
    length.writeUIntLE(bytes.length, 0, 6);
    return [length, bytes];
  });
  return blake3Hex(Buffer.concat(pieces));
}

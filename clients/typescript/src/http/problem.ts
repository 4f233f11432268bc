/** The error responses of the layer: problem documents (RFC 9457), as the broker writes them. */

/** An error response of the layer. */
export class Problem {
  readonly code: string;
  readonly status: number;
  readonly #title: string;
  readonly #detail: string;
  readonly #retryAfterMs: number | undefined;
  readonly #more: Record<string, string | number>;

  constructor(
    code: string,
    status: number,
    title: string,
    detail: string,
    options: { retryAfterMs?: number; more?: Record<string, string | number> } = {},
  ) {
    this.code = code;
    this.status = status;
    this.#title = title;
    this.#detail = detail;
    this.#retryAfterMs = options.retryAfterMs;
    this.#more = options.more ?? {};
  }

  response(): Response {
    const document = {
      // A URN: the service behind has no such page.
      type: `urn:hapax:error:${this.code}`,
      title: this.#title,
      status: this.status,
      detail: this.#detail,
      code: this.code,
      retryable: this.#retryAfterMs !== undefined,
      ...this.#more,
    };
    const headers: Record<string, string> = {
      "content-type": "application/problem+json",
      "cache-control": "no-store",
    };
    if (this.#retryAfterMs !== undefined) {
      headers["retry-after"] = String(Math.max(1, Math.ceil(this.#retryAfterMs / 1_000)));
    }
    return new Response(JSON.stringify(document), { status: this.status, headers });
  }
}

export function missingKey(detail: string): Problem {
  return new Problem("missing_key", 400, "An idempotency key is required", detail);
}

export function malformedKey(detail: string): Problem {
  return new Problem("malformed_key", 400, "The idempotency key is malformed", detail);
}

export function invalid(detail: string): Problem {
  return new Problem("invalid", 400, "The request is invalid", detail);
}

export function noTenant(): Problem {
  const detail =
    "this route stores its answers per caller, and this request does not identify its caller";
  return new Problem("unauthorized", 401, "The caller is unknown", detail);
}

export function requestTimeout(ms: number): Problem {
  const detail = `the request did not arrive within ${Math.round(ms / 1_000)} s`;
  const title = "The request took too long to arrive";
  return new Problem("unavailable", 408, title, detail, { retryAfterMs: 1_000 });
}

export function tooLarge(max: number): Problem {
  const detail = `a request with a key may have at most ${max} bytes; nothing was done`;
  return new Problem("too_large", 413, "The request is too large", detail);
}

export function conflict(): Problem {
  const detail =
    "the key was used before with a different request (method, path, query, headers and body are " +
    "compared); the earlier one is unchanged, and this one was not carried out";
  return new Problem("conflict", 422, "The key was used for another operation", detail);
}

export function inProgress(retryAfterMs: number): Problem {
  const detail =
    "a request with this key is in progress: retry later, or wait for its answer with Prefer: " +
    "wait=SECONDS";
  return new Problem("in_flight", 409, "The first request is in progress", detail, {
    retryAfterMs,
  });
}

export function inDoubt(claimKey: string): Problem {
  const detail =
    "a request with this key was begun and its outcome is unknown: it may have been carried out, " +
    "and is not repeated until an operator has resolved it";
  const more = { claim_key: claimKey };
  return new Problem("in_doubt", 409, "The outcome is unknown", detail, { more });
}

export function brokenResponse(claimKey: string): Problem {
  const detail =
    "the request was begun, but its response was interrupted, so its outcome is unknown";
  const more = { claim_key: claimKey };
  return new Problem("in_doubt", 500, "The outcome is unknown", detail, { more });
}

export function leaseLost(retryAfterMs: number): Problem {
  const detail =
    "this request lost its lease while it was in progress, and another request with the same key " +
    "is being processed: retry with the same key to get its answer";
  return new Problem("lease_lost", 409, "Another request has the key", detail, { retryAfterMs });
}

export function tooOld(): Problem {
  const detail =
    "the date of the key is older than the retention, so the request may have been carried out " +
    "already; it was not carried out now";
  return new Problem("too_old", 410, "The request is older than the retention", detail);
}

export function undatedKey(): Problem {
  const detail =
    "this route accepts only UUIDv7 or ULID keys, so that late retries can be recognised";
  return new Problem("undated_key", 422, "The key has no date", detail);
}

export function notKept(status: number): Problem {
  const detail =
    `the request with this key was carried out and answered with ${status}; its response was too ` +
    "large to be stored";
  const more = { original_status: status };
  return new Problem("response_not_kept", 410, "The response was not stored", detail, { more });
}

export function unavailable(detail: string, retryAfterMs: number): Problem {
  const title = "Idempotency cannot be guaranteed now";
  return new Problem("unavailable", 503, title, detail, { retryAfterMs });
}

export function internal(detail: string): Problem {
  return new Problem("internal", 500, "The service has an internal error", detail);
}

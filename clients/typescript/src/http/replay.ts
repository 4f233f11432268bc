/** Responses that are sent again, or sent after they were gathered. */

import type { Content } from "../content.js";
import type { Gathered } from "./body.js";
import * as problems from "./problem.js";
import { decode, STORED_TYPE } from "./stored.js";

/** Statuses whose responses have no body, whatever was stored. */
const BODILESS = [204, 205, 304];

/** The stored response, or a problem if it was not stored. */
export function replay(result: Content | undefined): Response {
  const response = stored(result);
  response.headers.set("idempotency-replayed", "true");
  return response;
}

function stored(result: Content | undefined): Response {
  if (result?.contentType !== STORED_TYPE) {
    return resolved(result);
  }
  try {
    const { status, headers, body } = decode(result.bytes);
    if (body === undefined) {
      return problems.notKept(status).response();
    }
    const isEmpty = body.length === 0 || BODILESS.includes(status);
    return new Response(isEmpty ? null : Buffer.from(body), { status, headers });
  } catch {
    const detail = "the request was carried out before, but its response cannot be read";
    return problems.internal(detail).response();
  }
}

/** The response of a key that an operator resolved: a body and its content type. */
function resolved(result: Content | undefined): Response {
  if (result === undefined || result.length === 0) {
    return new Response(null, { status: 204 });
  }
  const type = result.contentType;
  const headers: Record<string, string> = type === null ? {} : { "content-type": type };
  return new Response(Buffer.from(result.bytes), { headers });
}

export function whole(response: Response, body: Gathered): Response {
  const { status, statusText, headers } = response;
  if ("stream" in body) {
    return new Response(body.stream, { status, statusText, headers });
  }
  const bytes = "whole" in body && body.whole.length > 0 ? Buffer.from(body.whole) : null;
  return new Response(bytes, { status, statusText, headers });
}

/** The client's key, as its route says where it is found. */

import { MalformedKeyError } from "../errors.js";
import { readKey } from "../keys.js";
import * as problems from "./problem.js";
import type { Head, Route } from "./route.js";

/** A request that is answered with a problem, before anything is done. */
export class Refused extends Error {
  readonly problem: problems.Problem;

  constructor(problem: problems.Problem) {
    super(problem.code);
    this.problem = problem;
  }
}

/** The key in the head of a request: given, in the body, or absent where none is required. */
export function keyOf(route: Route, head: Head): { key: string } | "in_body" | "absent" {
  if (route.keyHeader === undefined) {
    return "in_body";
  }
  const values = head.values(route.keyHeader);
  const [value] = values;
  if (value === undefined) {
    if (route.isRequired) {
      throw new Refused(problems.missingKey(missing(route.keyHeader, head)));
    }
    return "absent";
  }
  if (values.length > 1) {
    throw new Refused(problems.malformedKey(`${route.keyHeader} is given more than once`));
  }
  const bytes = Buffer.from(value, "latin1");
  const text = bytes.toString();
  if (!Buffer.from(text).equals(bytes)) {
    throw new Refused(problems.malformedKey(`${route.keyHeader} is not UTF-8`));
  }
  return { key: checked(() => readKey(text)) };
}

function missing(name: string, head: Head): string {
  const similar = head
    .names()
    .find((other) => /idempot[ea]n|idemkey/.test(other.replace(/[^a-z0-9]/g, "")));
  return similar === undefined
    ? `this route requires a key: send the header ${name}`
    : `this route requires a key: the request has the header ${similar}, but the key's header is ${name}`;
}

export function bodyKey(route: Route, head: Head, body: Uint8Array): string | undefined {
  const key = route.keyFrom?.(head, body);
  if (key === undefined && route.isRequired) {
    throw new Refused(problems.missingKey("this request contains no key"));
  }
  return key;
}

export function checked<T>(check: () => T): T {
  try {
    return check();
  } catch (error) {
    if (error instanceof MalformedKeyError) {
      throw new Refused(problems.malformedKey(error.detail));
    }
    throw error;
  }
}

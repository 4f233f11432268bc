/** What a step's result must be: patterns, variables and paths of the conformance suite. */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type Fields = { [name: string]: Json };

/** The reason why a result does not match a pattern; `undefined` if it does. */
export function mismatch(
  pattern: Json,
  value: Json | undefined,
  path = "result",
): string | undefined {
  const found = value ?? null;
  const differs = (): string =>
    `${path} is ${JSON.stringify(found)}, not ${JSON.stringify(pattern)}`;
  if (Array.isArray(pattern)) {
    if (!Array.isArray(found) || found.length !== pattern.length) {
      return differs();
    }
    return first(pattern, (item, index) => mismatch(item, found[index], `${path}.${index}`));
  }
  if (pattern === null || typeof pattern !== "object") {
    return pattern === found ? undefined : differs();
  }
  const names = Object.keys(pattern);
  const [test] = names;
  if (names.length === 1 && test?.startsWith("$")) {
    return passes(test, pattern[test] as Json, found) ? undefined : differs();
  }
  if (found === null || typeof found !== "object" || Array.isArray(found)) {
    return differs();
  }
  return first(names, (name) => mismatch(pattern[name] as Json, found[name], `${path}.${name}`));
}

function passes(test: string, argument: Json, value: Json): boolean {
  switch (test) {
    case "$any":
      return value !== null;
    case "$in":
      return (argument as Json[]).some((pattern) => mismatch(pattern, value) === undefined);
    case "$contains":
      return typeof value === "string" && value.includes(argument as string);
    case "$newer":
      return typeof value === "string" && BigInt(value) > BigInt(argument as string);
    case "$not":
      return mismatch(argument, value) !== undefined;
    default:
      throw new Error(`the runner does not know the test ${test}`);
  }
}

function first<T>(items: T[], check: (item: T, index: number) => string | undefined) {
  for (const [index, item] of items.entries()) {
    const found = check(item, index);
    if (found !== undefined) {
      return found;
    }
  }
  return undefined;
}

/** The part of a result at a path such as `messages.0.lease`. */
export function at(value: Json, path: string): Json {
  let part: Json | undefined = value;
  for (const name of path.split(".")) {
    part = (part as Fields | undefined)?.[name];
  }
  return part ?? null;
}

/** Puts variables in the place of `$name`. */
export function filled(value: Json, variables: Map<string, Json>): Json {
  if (typeof value === "string" && /^\$\w+$/.test(value)) {
    const variable = variables.get(value.slice(1));
    if (variable === undefined) {
      throw new Error(`there is no variable ${value}`);
    }
    return variable;
  }
  if (Array.isArray(value)) {
    return value.map((item) => filled(item, variables));
  }
  if (value === null || typeof value !== "object") {
    return value;
  }
  const entries = Object.entries(value);
  return Object.fromEntries(entries.map(([name, item]) => [name, filled(item, variables)]));
}

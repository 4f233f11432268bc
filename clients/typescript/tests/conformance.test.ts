/** Runs the conformance suite of all clients, `clients/conformance/cases.json`, with this one. */

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { useBroker } from "../src/vitest.js";
import { type Case, run } from "./conformance/runner.js";

const hapax = useBroker();
const path =
  process.env.HAPAX_CASES ??
  fileURLToPath(new URL("../../conformance/cases.json", import.meta.url));
const suite = JSON.parse(readFileSync(path, "utf8")) as { version: number; cases: Case[] };

test("the suite is of the version that this runner knows", () => {
  expect(suite.version).toBe(1);
  expect(suite.cases.length).toBeGreaterThan(30);
});

test.each(suite.cases)("$name", { timeout: 120_000 }, async (one) => {
  await run(hapax.broker, one);
});

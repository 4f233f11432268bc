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

const kills = (one: Case): boolean => one.steps.some((step) => step.op === "kill_broker");
const timeout = 600_000;

// Cases that leave the broker alone run several at a time: most of their time they wait for a lease
// to end. Those that kill it follow, one by one.
test.concurrent.each(suite.cases.filter((one) => !kills(one)))("$name", { timeout }, (one) =>
  run(hapax.broker, one),
);

test.each(suite.cases.filter(kills))("$name", { timeout }, (one) => run(hapax.broker, one));

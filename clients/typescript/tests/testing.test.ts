/** The broker for tests: it is there while it is used, and leaves nothing behind. */

import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { ConnectionError } from "../src/index.js";
import { TestBroker } from "../src/testing.js";
import { Child } from "./support/processes.js";
import { until } from "./support/wait.js";

test("it keeps its port and data over a kill, and is gone with its directory after a stop", async () => {
  const broker = await TestBroker.start();
  const queue = broker.client().queue("q");
  await queue.admin.put();
  await queue.send("x", { key: "a" });
  const { url } = broker;
  await broker.kill();
  await expect(queue.send("x", { key: "a", timeoutMs: 1 })).rejects.toMatchObject({
    code: "unavailable",
  });
  await broker.start();
  expect(broker.url).toBe(url);
  expect((await queue.send("x", { key: "a" })).answer).toBe("in_flight");
  await broker.stop();
  expect(existsSync(broker.directory)).toBe(false);
  const gone = queue.receive();
  await expect(gone).rejects.toBeInstanceOf(ConnectionError);
});

test("it ends with the process that started it, also by SIGKILL", async () => {
  const program = fileURLToPath(new URL("programs/broker.mjs", import.meta.url));
  const child = new Child(process.execPath, [program, process.env.HAPAX_BIN ?? "hapax"]);
  await until("the broker", () => {
    if (child.process.exitCode !== null) {
      throw new Error(child.errors);
    }
    return child.lines.length > 0;
  });
  const directory = child.lines[0] as string;
  expect(existsSync(directory)).toBe(true);
  await child.kill();
  await until("its end", () => !existsSync(directory));
});

test("a program that is not there is told", async () => {
  await expect(TestBroker.start({ program: "no-such-program" })).rejects.toThrow("did not start");
});

/** A broker for a file of vitest tests: started before the first one and ended after the last. */

import { afterAll, beforeAll } from "vitest";
import type { Client, ClientOptions } from "./client.js";
import { type BrokerOptions, TestBroker } from "./testing.js";

/** The broker of a test file. */
export interface UsedBroker {
  /** The broker itself, to kill it and start it again. */
  readonly broker: TestBroker;
  readonly url: string;
  client(options?: ClientOptions): Client;
}

/**
 * Starts a broker for the tests of this file, or of the `describe` that it is called in.
 *
 * ```ts
 * const hapax = useBroker();
 *
 * test("an order is charged once", async () => {
 *   const orders = hapax.client().queue("orders");
 *   await orders.admin.put();
 *   expect((await orders.send("three lemons", { key: "order-42" })).isNew).toBe(true);
 * });
 * ```
 */
export function useBroker(options: BrokerOptions = {}): UsedBroker {
  let running: TestBroker | undefined;
  beforeAll(async () => {
    running = await TestBroker.start(options);
  }, 60_000);
  afterAll(async () => {
    await running?.stop();
    running = undefined;
  }, 60_000);
  const broker = (): TestBroker => {
    if (running === undefined) {
      throw new Error("the broker runs while tests do: use it inside of a test or a hook");
    }
    return running;
  };
  return {
    get broker() {
      return broker();
    },
    get url() {
      return broker().url;
    },
    client: (clientOptions) => broker().client(clientOptions),
  };
}

// Starts a worker, sends an order twice, and gets one answer. It needs a broker: hapax dev
import { Client, Worker } from "hapax";

const orders = new Client(process.env.HAPAX_SERVER ?? "http://127.0.0.1:4747").queue("orders");
await orders.admin.put({ max_attempts: 5 });

const worker = new Worker(orders, async (message, context) => {
  // A retry of the message finds the outcome of a step that is done, and does not call again.
  const receipt = await context.step("charge", (key) => `receipt for ${key.slice(0, 8)}`);
  return { shipped: message.text, receipt };
});
const running = worker.run();

const key = "order-42"; // One key per operation, stored with the operation.
const first = await orders.sendAndWait("three lemons", { key, waitMs: 20_000 });
const again = await orders.send("three lemons", { key });
console.log(first.answer, first.result?.json());
console.log(again.answer, again.id === first.id ? "the same message" : "another message");

worker.stop(); // Takes no more, and waits for what has begun.
await running;

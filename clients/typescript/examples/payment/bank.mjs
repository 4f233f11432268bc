// A bank that takes keys: it charges once for each, and loses every third answer.
import { createServer } from "node:http";

/** @type {Map<string, string>} */
const charges = new Map();
let calls = 0;
const server = createServer((request, response) => {
  request.resume();
  if (request.method === "GET") {
    response.end(JSON.stringify({ charges: charges.size, calls }));
    return;
  }
  calls += 1;
  const key = String(request.headers["idempotency-key"]);
  const receipt = charges.get(key) ?? `receipt-${charges.size + 1}`;
  charges.set(key, receipt);
  if (calls % 3 === 0) {
    response.destroy();
  } else {
    response.end(JSON.stringify({ receipt }));
  }
});
server.listen(Number(process.env.PORT ?? 4801), "127.0.0.1", () => {
  const address = /** @type {import("node:net").AddressInfo} */ (server.address());
  console.log(`http://127.0.0.1:${address.port}`);
});

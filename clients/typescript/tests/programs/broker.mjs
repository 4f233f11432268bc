/** Starts a broker and prints its directory. Its test kills it. */

import { TestBroker } from "hapax/testing";

const broker = await TestBroker.start({ program: process.argv[2] });
console.log(broker.directory);
setInterval(() => undefined, 60_000);

/** Runs the programs of the documentation, and the package as it would be installed. */

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { useBroker } from "../src/vitest.js";
import { hasPostgres, Postgres } from "./support/postgres.js";
import { Child } from "./support/processes.js";
import { until } from "./support/wait.js";

const root = fileURLToPath(new URL("..", import.meta.url));
const hapax = useBroker();

/** Starts an example, and returns the address that it prints. */
async function started(
  path: string,
  environment: Record<string, string>,
): Promise<[Child, string]> {
  const child = new Child(process.execPath, [join(root, "examples", path)], environment);
  await until(path, () => {
    if (child.process.exitCode !== null) {
      throw new Error(`${path} ended: ${child.errors}`);
    }
    return child.lines.length > 0;
  });
  return [child, child.lines[0] as string];
}

test("the quick start of the README is the program that is run here", async () => {
  const program = readFileSync(join(root, "examples/quickstart.mjs"), "utf8");
  expect(readFileSync(join(root, "README.md"), "utf8")).toContain(program.trim());
  const environment = { HAPAX_SERVER: hapax.url };
  const child = new Child(process.execPath, [join(root, "examples/quickstart.mjs")], environment);
  expect(await child.ended, child.errors).toBe(0);
  expect(child.lines.length).toBe(2);
  expect(readFileSync(join(root, "README.md"), "utf8")).toContain(child.lines.join("\n"));
});

test("the program on the first page of the repository runs", async () => {
  const page = readFileSync(join(root, "../../README.md"), "utf8");
  const program = /```js\n(.*?)```/s.exec(page)?.[1]?.replace("http://127.0.0.1:4747", hapax.url);
  expect(program).toContain(hapax.url);
  // In the package, so that it finds itself by its name.
  const file = join(root, `first-page-${process.pid}.mjs`);
  writeFileSync(file, program as string);
  try {
    const child = new Child(process.execPath, [file], {});
    expect(await child.ended, child.errors).toBe(0);
    expect(child.lines).toEqual(["THREE LEMONS"]);
  } finally {
    rmSync(file);
  }
});

describe.skipIf(!hasPostgres())("the payment service", () => {
  test("charges and writes every order once, while its processes are killed", async () => {
    const postgres = await Postgres.start();
    const database = await postgres.database();
    const children: Child[] = [];
    try {
      const environment = {
        HAPAX_SERVER: hapax.url,
        // As `pg` reads it: a socket in a directory.
        DATABASE_URL: `postgres:///${database.name}?host=${postgres.directory}&user=postgres`,
        PORT: "0",
      };
      const [bank, bankUrl] = await started("payment/bank.mjs", environment);
      let [api, apiUrl] = await started("payment/api.mjs", environment);
      const relay = new Child(process.env.HAPAX_BIN ?? "hapax", [
        ...["relay", "--server", hapax.url, "--database", database.url],
      ]);
      const work = (): Child =>
        new Child(process.execPath, [join(root, "examples/payment/worker.mjs")], {
          ...environment,
          BANK: bankUrl,
        });
      let worker = work();
      children.push(bank, relay);
      const order = async (n: number): Promise<void> => {
        // As a customer who sees no answer: again, under the same key.
        await until(`order ${n}`, async () => {
          const reply = await fetch(`${apiUrl}/orders`, {
            method: "POST",
            body: '{"cents":1700}',
            headers: { "idempotency-key": `order-${n}`, "content-type": "application/json" },
          }).catch(() => undefined);
          expect(reply?.status ?? 503).not.toBe(422);
          return reply?.status === 201;
        });
      };
      try {
        await Promise.all(Array.from({ length: 4 }, (_, n) => order(n)));
        await worker.kill();
        await api.kill();
        worker = work();
        [api, apiUrl] = await started("payment/api.mjs", environment);
        await Promise.all(Array.from({ length: 8 }, (_, n) => order(n)));
        const paid = (): Promise<number> => database.number("SELECT count(*) FROM payments");
        await until("the payments", async () => (await paid()) >= 8);
        const counted = await fetch(bankUrl).then((reply) => reply.json());
        expect(counted).toMatchObject({ charges: 8 });
        expect(await database.number("SELECT count(DISTINCT id) FROM payments")).toBe(8);
        expect(await paid()).toBe(8);
        expect(await worker.stop(), worker.errors).toBe(0);
        expect(await api.stop(), api.errors).toBe(0);
      } finally {
        await Promise.all([api.kill(), worker.kill()]);
      }
    } finally {
      await Promise.all(children.map((child) => child.kill()));
      await database.end();
      await postgres.stop();
    }
  });
});

test("the package installs from its tarball, and all its parts can be imported", () => {
  const directory = mkdtempSync(join(tmpdir(), "hapax-pack-"));
  const npm = (cwd: string, ...args: string[]): string =>
    execFileSync("npm", [...args, "--loglevel=error"], { cwd, encoding: "utf8" });
  try {
    const packed = npm(root, "pack", "--json", "--ignore-scripts", "--pack-destination", directory);
    const [{ filename, files, version }] = JSON.parse(packed);
    const paths = (files as { path: string }[]).map(({ path }) => path);
    expect(paths).toEqual(expect.arrayContaining(["LICENSE", "README.md", "dist/index.d.ts"]));
    expect(
      paths.filter((path) => !/^(dist\/|LICENSE$|README.md$|package.json$)/.test(path)),
    ).toEqual([]);
    const workspace = readFileSync(join(root, "../../Cargo.toml"), "utf8");
    expect(version).toBe(/^version = "(.+)"$/m.exec(workspace)?.[1]);
    writeFileSync(join(directory, "package.json"), '{"type":"module"}');
    npm(directory, "install", "--offline", "--no-audit", "--no-fund", `./${filename}`);
    writeFileSync(
      join(directory, "main.js"),
      `import { Client, Worker } from "hapax";
       import { Inbox } from "hapax/postgres";
       import { Idempotency } from "hapax/http";
       import { TestBroker } from "hapax/testing";
       console.log([Client, Worker, Inbox, Idempotency, TestBroker].map((it) => it.name).join());`,
    );
    const printed = execFileSync(process.execPath, ["main.js"], {
      cwd: directory,
      encoding: "utf8",
    });
    expect(printed.trim()).toBe("Client,Worker,Inbox,Idempotency,TestBroker");
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
});

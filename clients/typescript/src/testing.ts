/**
 * A broker for tests: a process of its own, on a free port, with a directory that goes with it. It
 * can be killed and started again, to see that nothing is lost or done twice.
 *
 * The program is `hapax` in the `PATH`, or what the variable `HAPAX_BIN` names.
 */

import { type ChildProcess, spawn } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import type { Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Client, type ClientOptions } from "./client.js";
import { sleep } from "./retry.js";

const START_MS_MAX = 60_000;

/** The settings of a broker for tests. */
export interface BrokerOptions {
  /** The program, instead of `HAPAX_BIN` or `hapax`. */
  program?: string | undefined;
  /** Further arguments of `hapax dev`. */
  arguments?: string[] | undefined;
}

/** A broker that runs until it is stopped. */
export class TestBroker {
  readonly directory: string;
  readonly #options: BrokerOptions;
  #address = "127.0.0.1:0";
  #process: ChildProcess | undefined;
  #isRunning = false;
  #ended: Promise<void> = Promise.resolve();
  #errors = "";

  private constructor(directory: string, options: BrokerOptions) {
    this.directory = directory;
    this.#options = options;
  }

  /** Starts a broker with an empty directory. */
  static async start(options: BrokerOptions = {}): Promise<TestBroker> {
    const broker = new TestBroker(await mkdtemp(join(tmpdir(), "hapax-")), options);
    try {
      await broker.start();
    } catch (error) {
      await broker.stop();
      throw error;
    }
    return broker;
  }

  get url(): string {
    return `http://${this.#address}`;
  }

  client(options: ClientOptions = {}): Client {
    return new Client(this.url, options);
  }

  /** Starts it again after a kill, on the same port and directory, and waits until it answers. */
  async start(): Promise<void> {
    if (this.#isRunning) {
      throw new Error("the broker is running already");
    }
    const portFile = join(this.directory, "port");
    await rm(portFile, { force: true });
    const child = this.#spawn(portFile);
    const until = performance.now() + START_MS_MAX;
    for (;;) {
      const address = await readFile(portFile, "utf8").catch(() => "");
      if (address.includes(":")) {
        this.#address = address.trim().split("\n")[0] ?? address;
        break;
      }
      if (child.exitCode !== null || child.signalCode !== null || performance.now() > until) {
        throw new Error(`the broker did not start: ${this.#errors.trim() || "no output"}`);
      }
      await sleep(10);
    }
    await this.client().ready({ timeoutMs: START_MS_MAX });
  }

  /** Ends it as a power failure would: SIGKILL. */
  async kill(): Promise<void> {
    this.#process?.kill("SIGKILL");
    await this.#ended;
  }

  /** Stops the process without ending it; {@link TestBroker.resume} continues it. */
  suspend(): void {
    this.#process?.kill("SIGSTOP");
  }

  resume(): void {
    this.#process?.kill("SIGCONT");
  }

  /** Ends it, and removes its directory. */
  async stop(): Promise<void> {
    await this.kill();
    await rm(this.directory, { recursive: true, force: true });
  }

  #spawn(portFile: string): ChildProcess {
    const { program = process.env.HAPAX_BIN ?? "hapax" } = this.#options;
    const data = join(this.directory, "data");
    const own = ["dev", "--listen", this.#address, "--data", data, "--port-file", portFile];
    const environment = Object.entries(process.env).filter(([name]) => !name.startsWith("HAPAX_"));
    const child = spawn(program, [...own, ...(this.#options.arguments ?? [])], {
      cwd: this.directory,
      env: Object.fromEntries(environment),
      stdio: ["ignore", "ignore", "pipe"],
    });
    this.#process = child;
    this.#isRunning = true;
    this.#errors = "";
    child.stderr?.on("data", (data: Buffer) => {
      this.#errors = (this.#errors + data.toString()).slice(-4_096);
    });
    const unwatch = watch(child, this.directory);
    this.#ended = new Promise((resolve) => {
      const ended = (): void => {
        this.#isRunning = false;
        unwatch();
        resolve();
      };
      child.once("exit", ended);
      child.once("error", (error) => {
        this.#errors += error.message;
        ended();
      });
    });
    return child;
  }
}

/**
 * Ends a broker and removes its directory when this process ends in whatever way, also by SIGKILL: a
 * shell waits for the end of a pipe whose other end is here.
 */
function watch(child: ChildProcess, directory: string): () => void {
  if (child.pid === undefined) {
    return () => undefined;
  }
  const script = 'cat >/dev/null; kill -9 "$1"; rm -rf -- "$2"';
  const shell = spawn("sh", ["-c", script, "sh", String(child.pid), directory], {
    stdio: ["pipe", "ignore", "ignore"],
    detached: true,
  });
  shell.once("error", () => undefined);
  shell.unref();
  (shell.stdin as Socket | null)?.unref();
  return () => {
    // The shell and its cat, which have a process group of their own.
    if (shell.pid !== undefined && shell.exitCode === null) {
      process.kill(-shell.pid, "SIGKILL");
    }
    shell.stdin?.destroy();
  };
}

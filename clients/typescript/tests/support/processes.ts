/** Programs as processes that can be killed. */

import { type ChildProcess, spawn } from "node:child_process";

/** A child process, with the lines that it printed. */
export class Child {
  readonly process: ChildProcess;
  readonly lines: string[] = [];
  errors = "";
  readonly #ended: Promise<number | null>;

  constructor(program: string, args: string[], environment: Record<string, string> = {}) {
    const inherited = Object.entries(process.env).filter(([name]) => !name.startsWith("HAPAX_"));
    this.process = spawn(program, args, {
      env: { ...Object.fromEntries(inherited), ...environment },
      stdio: ["ignore", "pipe", "pipe"],
    });
    this.process.stderr?.on("data", (data: Buffer) => {
      this.errors = (this.errors + data.toString()).slice(-10_000);
    });
    let rest = "";
    this.process.stdout?.on("data", (data: Buffer) => {
      const lines = (rest + data.toString()).split("\n");
      rest = lines.pop() ?? "";
      this.lines.push(...lines);
    });
    this.#ended = new Promise((resolve) => this.process.once("exit", resolve));
  }

  async kill(): Promise<void> {
    this.process.kill("SIGKILL");
    await this.#ended;
  }

  /** Its exit code, after it has been told to stop. */
  async stop(): Promise<number | null> {
    this.process.kill("SIGTERM");
    return this.#ended;
  }

  get ended(): Promise<number | null> {
    return this.#ended;
  }
}

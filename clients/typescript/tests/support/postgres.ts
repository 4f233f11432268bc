/**
 * A PostgreSQL of the tests' own, in a temporary directory, behind a socket: nothing of a PostgreSQL
 * that runs on this machine is read, changed or stopped.
 */

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import pg from "pg";

const USER = "postgres";
/** Its data is thrown away: nothing has to outlive the machine. */
const SETTINGS = ["listen_addresses=", "fsync=off", "shared_buffers=32MB", "max_connections=100"];

/** The programs of the newest version, where Debian keeps a folder for each. */
function programs(): string | undefined {
  const root = "/usr/lib/postgresql";
  const versions = existsSync(root) ? readdirSync(root) : [];
  const whole = versions.filter((version) => existsSync(join(root, version, "bin", "initdb")));
  const newest = whole.sort((one, other) => Number(other) - Number(one))[0];
  return newest === undefined ? undefined : join(root, newest, "bin");
}

/** Whether PostgreSQL can be had; says so where it cannot. */
export function hasPostgres(): boolean {
  if (programs() !== undefined) {
    return true;
  }
  process.stdout.write("SKIPPED what needs PostgreSQL: as root, apt-get install postgresql\n");
  return false;
}

export class Postgres {
  readonly directory: string;
  readonly #process: ChildProcess;
  #databases = 0;

  private constructor(directory: string, child: ChildProcess) {
    this.directory = directory;
    this.#process = child;
  }

  static async start(): Promise<Postgres> {
    const bin = programs();
    if (bin === undefined) {
      throw new Error("PostgreSQL is not here");
    }
    const directory = mkdtempSync(join(tmpdir(), "hapax-pg-"));
    const isRoot = process.getuid?.() === 0;
    if (isRoot) {
      execFileSync("chown", [USER, directory]);
    }
    // PostgreSQL refuses to run as root; Debian's package comes with a user for it.
    const other = isRoot ? ["--reuid", USER, "--regid", USER, "--init-groups"] : [];
    const as = ["--pdeathsig", "QUIT", ...other, "--"];
    const data = join(directory, "data");
    const init = ["--pgdata", data, "--username", USER, "--auth", "trust", "--no-locale"];
    const options = { cwd: "/", stdio: "ignore" } as const;
    const initdb = [...as, join(bin, "initdb"), ...init, "--encoding", "UTF8", "--no-sync"];
    execFileSync("setpriv", initdb, options);
    const settings = SETTINGS.flatMap((setting) => ["-c", setting]);
    const serve = [...as, join(bin, "postgres"), "-D", data, "-k", directory, ...settings];
    const postgres = new Postgres(directory, spawn("setpriv", serve, options));
    await postgres.#ready();
    return postgres;
  }

  async #ready(): Promise<void> {
    for (let tries = 0; tries < 6_000; tries += 1) {
      const client = new pg.Client({ host: this.directory, user: USER, database: USER });
      try {
        await client.connect();
        await client.end();
        return;
      } catch {
        await pause(50);
      }
    }
    throw new Error("PostgreSQL does not answer");
  }

  /** A new, empty database. */
  async database(): Promise<Database> {
    this.#databases += 1;
    const name = `test_${this.#databases}`;
    const client = new pg.Client({ host: this.directory, user: USER, database: USER });
    await client.connect();
    await client.query(`CREATE DATABASE ${name}`);
    await client.end();
    return new Database(this.directory, name);
  }

  async stop(): Promise<void> {
    const ended = new Promise((resolve) => this.#process.once("exit", resolve));
    const pidFile = join(this.directory, "data", "postmaster.pid");
    const pid = existsSync(pidFile) ? Number(readFileSync(pidFile, "utf8").split("\n")[0]) : 0;
    if (pid > 0) {
      process.kill(pid, "SIGQUIT");
      await ended;
    }
    rmSync(this.directory, { recursive: true, force: true });
  }
}

export class Database {
  readonly pool: pg.Pool;
  readonly url: string;
  readonly name: string;

  constructor(host: string, name: string) {
    this.name = name;
    this.url = `postgres://${USER}@${encodeURIComponent(host)}/${name}`;
    this.pool = new pg.Pool({ host, user: USER, database: name });
    // Tests break connections on purpose.
    this.pool.on("error", () => undefined);
  }

  async number(sql: string): Promise<number> {
    const { rows } = await this.pool.query({ text: sql, rowMode: "array" });
    return Number(rows[0]?.[0]);
  }

  async end(): Promise<void> {
    await this.pool.end();
  }
}

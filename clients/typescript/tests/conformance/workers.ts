/** Workers whose handlers are lists of actions, and a log of what they did. */

import { once } from "node:events";
import { setTimeout as pause } from "node:timers/promises";
import {
  Content,
  type Context,
  type Delivery,
  Done,
  Failure,
  type Queue,
  Worker,
} from "../../src/index.js";
import type { Fields, Json } from "./match.js";

export type Action = Fields;

interface Attempt {
  key: string;
  attempt: number;
  steps: Record<string, { key: string | null; called: boolean }>;
  lost: boolean;
}

interface Running {
  worker: Worker;
  ended: Promise<void>;
  log: Attempt[];
}

export class Workers {
  readonly #running = new Map<string, Running>();
  readonly #calls = new Map<string, string[]>();

  start(
    queue: Queue,
    name: string,
    options: { concurrency: number; leaseMs: number | undefined },
    handler: Action[][],
  ): void {
    const log: Attempt[] = [];
    const worker = new Worker(
      queue,
      (message, context) => {
        const { key, attempt } = message;
        const entry: Attempt = { key, attempt, steps: {}, lost: false };
        log.push(entry);
        const actions = handler[Math.min(attempt, handler.length) - 1] ?? [];
        return this.#handle(actions, message, context, entry);
      },
      options,
    );
    this.#running.set(name, { worker, ended: worker.run(), log });
  }

  async stop(name: string, drainMs: number): Promise<void> {
    const running = this.#running.get(name);
    running?.worker.stop({ drainMs });
    await running?.ended;
  }

  async end(): Promise<void> {
    for (const name of this.#running.keys()) {
      await this.stop(name, 0);
    }
  }

  log(name: string): Attempt[] {
    return this.#running.get(name)?.log ?? [];
  }

  calls(step: string): string[] {
    return this.#calls.get(step) ?? [];
  }

  async #handle(
    actions: Action[],
    message: Delivery,
    context: Context,
    entry: Attempt,
  ): Promise<Done | undefined> {
    for (const action of actions) {
      const [verb] = Object.keys(action);
      switch (verb) {
        case "step":
          await this.#step(action, context, entry);
          break;
        case "save":
          await context.save(action.save as string, action.body as string);
          break;
        case "begin":
          await context.begin();
          break;
        case "extend_ms":
          await context.extend(action.extend_ms as number);
          break;
        case "return":
          return done(action.return as Fields);
        case "fail":
          throw new Failure(action.fail as string, {
            retryInMs: action.retry_in_ms as number | undefined,
            dead: action.dead as boolean | undefined,
            inDoubt: action.in_doubt as boolean | undefined,
          });
        case "panic":
          throw new Error(action.panic as string);
        case "until":
          await until(action.until as string, context, entry);
          break;
        case "sleep_ms":
          await pause(action.sleep_ms as number, undefined, { ref: false });
          break;
        default:
          throw new Error(`the runner does not know the action ${verb} of ${message.key}`);
      }
    }
    return undefined;
  }

  async #step(action: Action, context: Context, entry: Attempt): Promise<void> {
    const name = action.step as string;
    entry.steps[name] ??= { key: null, called: false };
    await context.step<Json>(name, (key) => {
      entry.steps[name] = { key, called: true };
      this.#calls.set(name, [...this.calls(name), key]);
      if ("error" in action) {
        throw new Error(action.error as string);
      }
      return action.outcome ?? null;
    });
  }
}

async function until(signal: string, context: Context, entry: Attempt): Promise<void> {
  const awaited = signal === "lost" ? context.signal : context.stopping;
  if (!awaited.aborted) {
    await once(awaited, "abort");
  }
  entry.lost ||= signal === "lost";
}

function done(action: Fields): Done {
  const result = action.result as Fields | undefined;
  const finished = new Done(result === undefined ? undefined : Content.read(result));
  for (const emit of (action.emit ?? []) as Fields[]) {
    finished.emit(emit.queue as string, emit.name as string, Content.read(emit));
  }
  return finished;
}

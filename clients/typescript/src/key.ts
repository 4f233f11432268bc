/** What the broker knows about a key. */

import type { State } from "./answer.js";
import { Content, type WireContent } from "./content.js";
import { dateOf } from "./errors.js";

/** A key in JSON. */
export interface WireKey extends WireContent {
  key: string;
  id: string;
  state: State;
  attempts: number;
  generation: number;
  group: string | null;
  accepted_at: string;
  finished_at?: string | null;
  remembered_until?: string | null;
  deadline?: string | null;
  worker?: string | null;
  duplicates: number;
  result?: WireContent | null;
  error?: string | null;
  recovery_points?: Record<string, WireContent>;
  history?: { at: string; event: string; worker: string | null; detail: string | null }[];
  headers?: Record<string, string>;
}

/** An event in the history of a key. */
export interface KeyEvent {
  at: Date;
  /** `sent`, `duplicate`, `leased`, `failed`, `done` and others: see the HTTP API. */
  event: string;
  worker: string | null;
  detail: string | null;
}

/** Everything about a key. */
export interface KeyInfo {
  key: string;
  id: string;
  state: State;
  attempts: number;
  /** The number of replays. */
  generation: number;
  group: string | null;
  acceptedAt: Date;
  finishedAt: Date | undefined;
  rememberedUntil: Date | undefined;
  deadline: Date | undefined;
  worker: string | undefined;
  duplicates: number;
  result: Content | undefined;
  error: string | undefined;
  recoveryPoints: Map<string, Content>;
  history: KeyEvent[];
  /** Body and headers of a message that is not finished. */
  content: Content | undefined;
  headers: Record<string, string> | undefined;
  /** As the broker wrote it. */
  wire: WireKey;
}

/** Reads a key. */
export function keyInfo(wire: WireKey): KeyInfo {
  const points = Object.entries(wire.recovery_points ?? {});
  const hasBody = wire.body !== undefined || wire.body_base64 !== undefined;
  return {
    key: wire.key,
    id: wire.id,
    state: wire.state,
    attempts: wire.attempts,
    generation: wire.generation,
    group: wire.group,
    acceptedAt: dateOf(wire.accepted_at) ?? new Date(0),
    finishedAt: dateOf(wire.finished_at),
    rememberedUntil: dateOf(wire.remembered_until),
    deadline: dateOf(wire.deadline),
    worker: wire.worker ?? undefined,
    duplicates: wire.duplicates,
    result: wire.result == null ? undefined : Content.read(wire.result),
    error: wire.error ?? undefined,
    recoveryPoints: new Map(points.map(([name, data]) => [name, Content.read(data)])),
    history: (wire.history ?? []).map((event) => ({ ...event, at: new Date(event.at) })),
    content: hasBody ? Content.read(wire) : undefined,
    headers: wire.headers,
    wire,
  };
}

/** Waits for a condition, with a generous bound. */

import { setTimeout as pause } from "node:timers/promises";

export async function until(
  what: string,
  isSo: () => boolean | Promise<boolean>,
  withinMs = 240_000,
): Promise<void> {
  const end = performance.now() + withinMs;
  while (!(await isSo())) {
    if (performance.now() > end) {
      throw new Error(`waited in vain for ${what}`);
    }
    await pause(20);
  }
}

//! Which sections to merge next.
//!
//! Sections of one kind (a bucket, or the ordered rows) form a row from new to old; only
//! neighbours may be merged, or older rows would come to hide newer ones. In order of preference:
//! 1. as many sections of one size tier as the fan-in, the smallest tier first;
//! 2. a kind with too many sections for all that: its cheapest neighbours;
//! 3. a kind a quarter of whose rows only say that others are deleted: all of it;
//! 4. too many sections for a look-up, over all buckets: the cheapest neighbours of any;
//! 5. too many bytes of dead sections kept by live ones in the same files: a live one moves out.
//!
//! Each choice makes the number of sections, deleted rows or dead bytes smaller, so that merging
//! comes to an end when nothing is written.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::bounds::{
    DEAD_BYTES_MIN, DELETED_ROWS_MIN, LOOKUP_SECTIONS, MERGE_INPUTS_MAX, MERGE_ROWS_MAX, TIER_BYTES,
};
use super::section::Section;
use super::state::View;

/// What one merge reads, the newest first.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) inputs: Vec<Arc<Section>>,
    /// Whether nothing older is left in the kind: then deleted rows have nothing to hide.
    pub(super) oldest: bool,
}

type Row<'a> = &'a [Arc<Section>];

pub(super) fn choose(view: &View, fan_in: usize) -> Option<Plan> {
    let kinds = || view.kinds();
    by_tier(kinds(), fan_in)
        .or_else(|| {
            let crowded = kinds().filter(|row| row.len() > 2 * fan_in);
            cheapest(crowded, fan_in)
        })
        .or_else(|| kinds().find(|row| is_mostly_deleted(row)).map(|row| plan(row, 0, row.len())))
        .or_else(|| {
            let too_many = view.points.len() > LOOKUP_SECTIONS + view.buckets();
            cheapest(view.bucket_rows().filter(|_| too_many), fan_in)
        })
        .or_else(|| dead_weight(view))
}

/// Whether checkpoints should wait for merges.
pub(super) fn is_behind(view: &View, fan_in: usize) -> bool {
    view.kinds().any(|row| row.len() > 3 * fan_in)
}

fn plan(row: Row<'_>, start: usize, end: usize) -> Plan {
    assert!(start < end && end <= row.len(), "a merge has inputs");
    let inputs = row.get(start..end).unwrap_or_default().to_vec();
    Plan { inputs, oldest: end == row.len() }
}

fn by_tier<'a>(rows: impl Iterator<Item = Row<'a>>, fan_in: usize) -> Option<Plan> {
    let candidates = rows.filter_map(|row| {
        let tiers: Vec<u32> = row.iter().map(|section| tier(section, fan_in)).collect();
        let highest = tiers.iter().max().copied().unwrap_or(0);
        (0..=highest).find_map(|tier| {
            let (start, end) = of_tier(&tiers, tier, fan_in)?;
            let window = row.get(start..end)?;
            is_affordable(window).then(|| (tier, plan(row, start, end)))
        })
    });
    candidates.min_by_key(|(tier, _)| *tier).map(|(_, plan)| plan)
}

/// The oldest neighbours none of which is above `tier` and `fan_in` of which are of it.
fn of_tier(tiers: &[u32], tier: u32, fan_in: usize) -> Option<(usize, usize)> {
    let mut end = tiers.len();
    while end > 0 {
        let upto = tiers.get(..end)?;
        let start = upto.iter().rposition(|other| *other > tier).map_or(0, |at| at + 1);
        let mut of_tier = 0;
        for at in (start..end).rev() {
            of_tier += usize::from(tiers.get(at) == Some(&tier));
            let inputs = end - at;
            if of_tier == fan_in || (inputs == MERGE_INPUTS_MAX && of_tier > fan_in / 2) {
                return Some((at, end));
            }
            if inputs == MERGE_INPUTS_MAX {
                break;
            }
        }
        end = start.saturating_sub(1);
    }
    None
}

fn tier(section: &Section, fan_in: usize) -> u32 {
    let ratio = section.meta.block_bytes() / TIER_BYTES;
    ratio.checked_ilog(fan_in.max(2) as u64).map_or(0, |tier| tier + 1)
}

fn is_affordable(window: Row<'_>) -> bool {
    window.iter().map(|section| section.meta.rows).sum::<u64>() <= MERGE_ROWS_MAX
}

/// The neighbours that cost the fewest bytes per section saved.
fn cheapest<'a>(rows: impl Iterator<Item = Row<'a>>, fan_in: usize) -> Option<Plan> {
    let mut best: Option<(u64, Plan)> = None;
    for row in rows {
        for length in 2..=fan_in.min(row.len()) {
            for (start, window) in row.windows(length).enumerate() {
                let bytes: u64 = window.iter().map(|section| section.meta.bytes()).sum();
                let cost = bytes / (length as u64 - 1);
                if best.as_ref().is_none_or(|(least, _)| cost < *least) && is_affordable(window) {
                    best = Some((cost, plan(row, start, start + length)));
                }
            }
        }
    }
    best.map(|(_, plan)| plan)
}

fn is_mostly_deleted(row: Row<'_>) -> bool {
    let rows: u64 = row.iter().map(|section| section.meta.rows).sum();
    let deleted: u64 = row.iter().map(|section| section.meta.deleted).sum();
    deleted >= DELETED_ROWS_MIN
        && deleted > rows / 4
        && row.len() <= MERGE_INPUTS_MAX
        && is_affordable(row)
}

/// A file holds its bytes until all its sections are dead.
fn dead_weight(view: &View) -> Option<Plan> {
    let mut files: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for section in view.sections() {
        let (bytes, live) = files.entry(section.run.id).or_insert((section.run.bytes, 0));
        *live += section.meta.bytes();
        debug_assert!(*live <= *bytes, "sections lie within their file");
    }
    let live: u64 = files.values().map(|(_, live)| live).sum();
    let dead: u64 = files.values().map(|(bytes, live)| bytes - live).sum();
    if dead <= DEAD_BYTES_MIN + live / 8 {
        return None;
    }
    // The file that gives back most for what moving its sections costs.
    let gain = |(bytes, live): &(u64, u64)| (bytes - live).saturating_mul(1000) / (live + 1);
    let (worst, _) = files.iter().max_by_key(|(id, file)| (gain(file), std::cmp::Reverse(**id)))?;
    view.kinds().find_map(|row| {
        let at = row.iter().position(|section| section.run.id == *worst)?;
        is_affordable(row.get(at..=at)?).then(|| plan(row, at, at + 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tiers: &[u32], tier: u32, expected: Option<(usize, usize)>) {
        assert_eq!(of_tier(tiers, tier, 4), expected, "{tiers:?} tier {tier}");
    }

    #[test]
    fn only_neighbours_are_merged_and_the_oldest_first() {
        check(&[0, 0, 0], 0, None);
        check(&[0, 0, 0, 0], 0, Some((0, 4)));
        check(&[0, 0, 0, 0, 0], 0, Some((1, 5)));
        check(&[0, 0, 0, 1, 0], 0, None);
        check(&[0, 0, 0, 0, 1, 1], 0, Some((0, 4)));
        check(&[0, 0, 1, 1, 1, 1, 2], 1, Some((2, 6)));
        check(&[1, 0, 1, 1, 0, 1, 2], 1, Some((0, 6)));
        check(&[0, 0, 1, 1, 1], 1, None);
    }
}

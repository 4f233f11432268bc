//! Which sections to merge next.
//!
//! Sections of one kind (a bucket, or the ordered rows) are ordered from new to old; only adjacent
//! ones may be merged, or older rows would hide newer ones. In order of preference: 1. as many
//! sections of one size tier as the fan-in, the smallest tier first; 2. a kind that still has too
//! many sections: its cheapest neighbours; 3. a kind of which a quarter of the rows are deletions:
//! all of it; 4. too many sections for a look-up, over all buckets: the cheapest neighbours of any;
//! 5. too many bytes of dead sections kept by live ones in the same files: a live one moves out.
//!
//! A merge is not begun if its inputs are larger than the free space: its output may be as large.
//! While the disk is short of space, merges that free some come first: 1. neighbours of which the
//! newer delete rows of the older: those that free most; 2. a live section moves out of a file that
//! is mostly dead; 3. neighbours that may hold rows of the same keys, which are not counted; not if
//! one is much larger than the others, so that it is not rewritten for each small one. If the
//! inputs do not fit, the output may: that is tried now and then, and abandoned if it turns out too
//! large.
//!
//! Each choice reduces the number of sections, deleted rows or dead bytes, so merging ends when
//! nothing is written.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::bounds::{
    DEAD_BYTES_MIN, DELETED_ROWS_MIN, LOOKUP_SECTIONS, MERGE_INPUTS_MAX, MERGE_ROWS_MAX, TIER_BYTES,
};
use super::section::Section;
use super::state::View;
use super::{Options, Space};

/// The inputs of one merge, newest first.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) inputs: Vec<Arc<Section>>,
    /// Whether the kind has nothing older: then deletions hide nothing and are dropped.
    pub(super) oldest: bool,
    /// The largest output that fits.
    pub(super) bytes_max: u64,
}

impl Plan {
    pub(super) fn input_bytes(&self) -> u64 {
        bytes_of(&self.inputs)
    }
}

/// What to do next.
#[derive(Debug)]
pub(super) enum Choice {
    Merge(Plan),
    /// The merge that is due is larger than the free space.
    NoRoom,
    Nothing,
}

type Row<'a> = &'a [Arc<Section>];

/// Chooses what to do next. `may_guess`: an output may be assumed to be smaller than its inputs.
pub(super) fn choose(view: &View, options: &Options, space: Space, may_guess: bool) -> Choice {
    let room = room(space);
    let least = options.shrink_bytes_min;
    let shrink = || {
        shrinking(view, room, least, may_guess)
            .or_else(|| dead_file(view, room, least))
            .or_else(|| overlapping(view, room, least, may_guess))
    };
    if space.is_short
        && let Some(plan) = shrink()
    {
        return Choice::Merge(plan);
    }
    match usual(view, options.merge_fan_in) {
        None => Choice::Nothing,
        Some(plan) if plan.input_bytes() <= room => Choice::Merge(Plan { bytes_max: room, ..plan }),
        Some(_) if space.is_short => Choice::NoRoom,
        Some(_) => shrink().map_or(Choice::NoRoom, Choice::Merge),
    }
}

/// The space for the output of a merge. The rest is for manifests and the journal.
pub(super) fn room(space: Space) -> u64 {
    space.free_bytes - space.free_bytes / 8
}

/// The merge that keeps the number of sections and the dead bytes small.
fn usual(view: &View, fan_in: usize) -> Option<Plan> {
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
    Plan { inputs, oldest: end == row.len(), bytes_max: u64::MAX }
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

/// The oldest neighbours of which none is above `tier` and `fan_in` are in it.
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

fn bytes_of(window: Row<'_>) -> u64 {
    window.iter().map(|section| section.meta.bytes()).sum()
}

/// The neighbours whose merge frees most. Those that certainly fit come before those that fit by
/// estimate.
fn shrinking(view: &View, room: u64, least: u64, may_guess: bool) -> Option<Plan> {
    let mut best: Option<((bool, u64), Plan)> = None;
    for row in view.kinds() {
        for (start, end, window) in windows(row) {
            let (bytes, gain) = (bytes_of(window), expected_gain(window));
            let is_sure = bytes <= room;
            let fits = is_sure || may_guess && bytes - gain <= room;
            let rank = (is_sure, gain);
            if gain >= least.max(bytes / 8)
                && fits
                && is_affordable(window)
                && best.as_ref().is_none_or(|(most, _)| *most < rank)
            {
                best = Some((rank, Plan { bytes_max: room, ..plan(row, start, end) }));
            }
        }
    }
    best.map(|(_, plan)| plan)
}

/// Bytes that merging these neighbours probably frees: a deletion usually hides a row of an older
/// section.
fn expected_gain(window: Row<'_>) -> u64 {
    let (mut deleted, mut gain) = (0, 0);
    for section in window {
        let meta = &section.meta;
        let kept = meta.rows - meta.deleted;
        let dead = deleted.min(kept);
        gain += (u128::from(meta.bytes()) * u128::from(dead) / u128::from(kept.max(1))) as u64;
        deleted += meta.deleted - dead.min(meta.deleted);
    }
    gain
}

/// The neighbours that may hide most of each other, preferably those that certainly fit.
fn overlapping(view: &View, room: u64, least: u64, may_guess: bool) -> Option<Plan> {
    let mut best: Option<((bool, u64), Plan)> = None;
    for row in view.kinds() {
        for (start, end, window) in windows(row) {
            let bytes = bytes_of(window);
            let largest = window.iter().map(|section| section.meta.bytes()).max().unwrap_or(0);
            let hidden = bytes - largest;
            let rank = (bytes <= room, hidden);
            if hidden >= least.max(bytes / 8)
                && (rank.0 || may_guess)
                && is_affordable(window)
                && best.as_ref().is_none_or(|(most, _)| *most < rank)
            {
                best = Some((rank, Plan { bytes_max: room, ..plan(row, start, end) }));
            }
        }
    }
    best.map(|(_, plan)| plan)
}

/// All runs of neighbours of a kind that may be merged, with their positions.
fn windows(row: Row<'_>) -> impl Iterator<Item = (usize, usize, Row<'_>)> {
    (0..row.len()).flat_map(move |start| {
        let ends = start + 2..=row.len().min(start + MERGE_INPUTS_MAX);
        ends.filter_map(move |end| Some((start, end, row.get(start..end)?)))
    })
}

/// Moves a section out of the file for which that frees most, if it fits.
fn dead_file(view: &View, room: u64, least: u64) -> Option<Plan> {
    let files = files(view).into_iter();
    let worth =
        files.filter(|(_, file)| file.dead() > least.max(file.bytes / 8) && file.live <= room);
    let (worst, _) = worth.max_by_key(|(id, file)| (file.gain(), std::cmp::Reverse(*id)))?;
    move_out(view, worst).map(|plan| Plan { bytes_max: room, ..plan })
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
#[derive(Clone, Copy, Debug)]
struct Weight {
    bytes: u64,
    live: u64,
}

impl Weight {
    fn dead(self) -> u64 {
        self.bytes - self.live
    }

    /// Bytes freed relative to the cost of moving its sections.
    fn gain(self) -> u64 {
        self.dead().saturating_mul(1000) / (self.live + 1)
    }
}

fn files(view: &View) -> BTreeMap<u64, Weight> {
    let mut files = BTreeMap::new();
    for section in view.sections() {
        let whole = Weight { bytes: section.run.bytes, live: 0 };
        let file = files.entry(section.run.id).or_insert(whole);
        file.live += section.meta.bytes();
        debug_assert!(file.live <= file.bytes, "sections lie within their file");
    }
    files
}

fn dead_weight(view: &View) -> Option<Plan> {
    let files = files(view);
    let live: u64 = files.values().map(|file| file.live).sum();
    let dead: u64 = files.values().map(|file| file.dead()).sum();
    if dead <= DEAD_BYTES_MIN + live / 8 {
        return None;
    }
    let worst = files.iter().max_by_key(|(id, file)| (file.gain(), std::cmp::Reverse(**id)))?;
    move_out(view, *worst.0)
}

/// Rewrites a section of the file into a new file.
fn move_out(view: &View, file: u64) -> Option<Plan> {
    view.kinds().find_map(|row| {
        let at = row.iter().position(|section| section.run.id == file)?;
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

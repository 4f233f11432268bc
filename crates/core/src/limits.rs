//! Every bound of the core, in one place, with the unit last.

/// A key is the caller's name for one logical operation.
pub const KEY_BYTES_MAX: usize = 255;
pub const GROUP_BYTES_MAX: usize = 255;
pub const CONTENT_TYPE_BYTES_MAX: usize = 255;
pub const TENANT_BYTES_MAX: usize = 80;
pub const QUEUE_NAME_BYTES_MAX: usize = 80;
pub const WORKER_BYTES_MAX: usize = 64;
pub const ERROR_BYTES_MAX: usize = 4_096;
pub const FINGERPRINT_BYTES_MAX: usize = 255;
pub const RECEIVE_ID_BYTES_MAX: usize = 128;
pub const CLAIM_ID_BYTES_MAX: usize = 128;
/// The name of an emit, journaled with it.
pub const EMIT_NAME_BYTES_MAX: usize = 255;
pub const REDRIVE_ID_BYTES_MAX: usize = 128;

pub const HEADERS_MAX: usize = 64;
pub const HEADERS_BYTES_MAX: usize = 16 * 1_024;
/// No queue may allow larger bodies or results than this.
pub const BODY_BYTES_MAX: u64 = 16 * 1_024 * 1_024;

pub const RECEIVE_MAX: u32 = 1_000;
/// A receive takes no further message after this many bytes.
pub const RECEIVE_BYTES_MAX: usize = 8 * 1_024 * 1_024;
pub const RECEIVE_ID_MS: u64 = 5 * 60 * 1_000;
pub const EMITS_MAX: usize = 64;
/// All emits of one settle, which must fit into one batch of the journal with its result.
pub const EMITS_BYTES_MAX: usize = 8 * 1_024 * 1_024;
/// Emits that wait to be sent to their queues. A `done` that would exceed it is refused.
pub const RELAY_MAX: usize = 100_000;
pub const RELAY_BYTES_MAX: usize = 64 * 1_024 * 1_024;
pub const RELAY_BACKOFF_MIN_MS: u64 = 100;
pub const RELAY_BACKOFF_MAX_MS: u64 = 30_000;

pub const RECOVERY_POINTS_MAX: usize = 64;
pub const RECOVERY_POINTS_BYTES_MAX: usize = 64 * 1_024;
pub const RECOVERY_POINT_NAME_BYTES_MAX: usize = 128;
pub const HISTORY_MAX: usize = 64;
/// Bytes of an error that an event of the history keeps; the last error is kept whole.
pub const DETAIL_BYTES_MAX: usize = 256;

pub const LEASE_MS_MIN: u64 = 100;
pub const LEASE_MS_MAX: u64 = 12 * 60 * 60 * 1_000;
pub const DELAY_MS_MAX: u64 = 366 * 24 * 60 * 60 * 1_000;
pub const RETENTION_MS_MIN: u64 = 1_000;
/// Earlier, shorter retentions that a queue remembers.
pub const RETENTIONS_MAX: usize = 16;
/// Anything longer must be "forever".
pub const RETENTION_MS_MAX: u64 = 100 * 366 * 24 * 60 * 60 * 1_000;
pub const BACKOFF_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1_000;
pub const ATTEMPTS_MAX: u32 = 1_000_000;
/// The largest quota that can be configured.
pub const COUNT_MAX: u64 = 1 << 60;

/// A freed claim is remembered this long, so that a repeated release gets the same answer.
pub const FREED_MS: u64 = RECEIVE_ID_MS;

pub use hapax_keys::DATED_AHEAD_MS;

pub const REDRIVE_KEYS_MAX: usize = 1_000;
/// Keys of a redrive that are looked up together, however small the messages of the queue are.
pub const REDRIVE_KEYS_STEP: usize = 16;
/// Redrives in progress at once in one queue; below, in all queues of a tenant.
pub const REDRIVES_MAX: usize = 16;
pub const REDRIVES_OF_TENANT_MAX: usize = 64;
/// Finished redrives are remembered, so that a repeated one moves nothing twice.
pub const REDRIVES_REMEMBERED_MAX: usize = 256;
pub const BROWSE_MAX: usize = 1_000;

/// Work that one tick may do before other commands get their turn.
pub const EXPIRE_STEP: usize = 1_024;
pub const JOB_STEP: usize = 256;
/// Messages that one tick moves over all queues and jobs: about a mebibyte of decisions.
pub const TICK_STEP: usize = 16 * 1_024;
/// Rows fetched at once to refill a queue's head.
pub const REFILL: usize = 1_024;

/// Groups loaded before a receive is decided again.
pub const GROUPS_AT_ONCE: usize = 16;

pub const PARTITIONS_MAX: u16 = 4_096;
/// Fences that the partitions of a broker use of one epoch before they raise it: half of those
/// there are.
pub const FENCES_MAX: u64 = 1 << 39;
pub const QUEUES_MAX: usize = 100_000;

/// Places in a segment of the index of keys: 32 KiB of memory, split in about ten microseconds.
pub const INDEX_PLACES: usize = 4_096;

/// Bounds of one machine that are not part of its contract: how much it does at once. They change
/// when something happens, never what, so a test, a model or a simulator makes them small and
/// reaches with ten messages what otherwise takes ten thousand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Leases, lives and delays of one queue that end in one tick; dead messages that one step of
    /// a redrive looks at; relays that are retried.
    pub expire_step: usize,
    /// Messages that one step of a purge or a redrive moves.
    pub job_step: usize,
    /// Messages that one tick moves over all queues and jobs; a tick continues where the previous
    /// one ended.
    pub tick_step: usize,
    /// Rows fetched at once to refill a queue's head, and messages that eviction leaves in it.
    pub refill: usize,
    /// A receive takes no further message after this many bytes.
    pub receive_bytes: usize,
    /// Groups loaded before a receive is decided again; queues whose heads one tick reads after a
    /// start.
    pub groups_at_once: usize,
    /// Messages on a page of a place.
    pub browse: usize,
    /// Emits that wait to be sent to their queues, of all tenants, and their memory. A tenant may
    /// use at most half of either.
    pub relays: usize,
    pub relay_bytes: usize,
    /// Fences of one epoch after which the partition wants the next epoch: half of those there are.
    pub fences: u64,
    /// Places in a segment of the index of keys, a power of two. At most this many entries move at
    /// once when it grows.
    pub index_places: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            expire_step: EXPIRE_STEP,
            job_step: JOB_STEP,
            tick_step: TICK_STEP,
            refill: REFILL,
            receive_bytes: RECEIVE_BYTES_MAX,
            groups_at_once: GROUPS_AT_ONCE,
            browse: BROWSE_MAX,
            relays: RELAY_MAX,
            relay_bytes: RELAY_BYTES_MAX,
            fences: FENCES_MAX,
            index_places: INDEX_PLACES,
        }
    }
}

impl Bounds {
    /// Keys of a redrive that are looked up together in a queue with this body limit: all their
    /// messages are loaded.
    pub fn keys_at_once(&self, max_body_bytes: u64) -> usize {
        let fit = self.receive_bytes as u64 / max_body_bytes.max(1);
        fit.clamp(1, REDRIVE_KEYS_STEP as u64) as usize
    }

    /// Panics if a bound is zero: nothing would ever progress.
    pub(crate) fn check(&self) {
        let Self { expire_step, job_step, tick_step, refill, .. } = *self;
        let Self { receive_bytes, groups_at_once, browse, relays, relay_bytes, fences, .. } = *self;
        let places = self.index_places;
        assert!(places.is_power_of_two() && (4..=1 << 16).contains(&places), "{places} places");
        assert!((1..=FENCES_MAX).contains(&fences), "the rest of an epoch is a reserve: {self:?}");
        for bound in [expire_step, job_step, tick_step, refill].into_iter().chain([
            receive_bytes,
            groups_at_once,
            browse,
            relays,
            relay_bytes,
        ]) {
            assert!(bound > 0, "every bound allows one: {self:?}");
        }
    }
}

// What the bounds must be to each other.
const _: () = assert!(LEASE_MS_MIN > 0 && LEASE_MS_MIN < LEASE_MS_MAX);
const _: () = assert!(RETENTION_MS_MIN > 0 && RETENTION_MS_MIN < RETENTION_MS_MAX);
const _: () = assert!(RELAY_BACKOFF_MIN_MS > 0 && RELAY_BACKOFF_MIN_MS < RELAY_BACKOFF_MAX_MS);
const _: () = assert!(RECOVERY_POINT_NAME_BYTES_MAX < RECOVERY_POINTS_BYTES_MAX);
const _: () = assert!(EMITS_MAX <= RELAY_MAX, "one settle alone is never too much");
const _: () = assert!(RECEIVE_MAX as usize <= REFILL, "one refill is enough for a receive");
const _: () = assert!(FENCES_MAX << 1 == 1 << crate::ids::Fence::COUNTER_BITS, "half in reserve");
const _: () = assert!(BROWSE_MAX < REFILL, "and for a page, with one more to tell of the next");

//! The record of a finished key, and the history of incidents.
//!
//! A record is small and written once. The history of a message without incident is built from its
//! times; events are stored only for incidents.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::codec::{BadBytes, Reader, Write};
use crate::command::Blob;
use crate::content::Content;
use crate::decision::bytes_of::{decode_content, decode_parts, encode_content, encode_parts};
use crate::ids::{Fence, MessageId, Seq, Time};
use crate::key::Fingerprint;
use crate::limits;

/// How a key's message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Done = 0,
    /// Discarded or purged: answered as dead, but nothing is left to redrive.
    Discarded = 1,
    /// A claim that was released or lost. The key is free: to a send it is unknown.
    Freed = 2,
    /// Forgotten by an operator. The key is free, and the history is kept.
    Forgotten = 3,
}

/// What is remembered of a finished key.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyRecord {
    pub end: End,
    pub seq: Seq,
    pub accepted_at: Time,
    pub leased_at: Time,
    pub finished_at: Time,
    /// From this time on the key is unknown.
    pub expires_at: Time,
    pub attempts: u32,
    pub generation: u32,
    pub fence: Fence,
    pub worker: Arc<str>,
    pub fingerprint: Fingerprint,
    pub duplicates: u64,
    pub losses: u32,
    pub error: Option<Arc<str>>,
    pub result: Option<Blob>,
    pub history: Vec<Event>,
    /// Recovery points of a freed claim, for the next one.
    pub points: BTreeMap<String, Bytes>,
    /// The message itself, if it is done and the queue keeps bodies.
    pub content: Option<Arc<Content>>,
    /// The sender's date of the operation, if it is later than the end.
    pub dated_ahead: Option<Time>,
}

impl KeyRecord {
    pub fn id(&self, partition: u16) -> MessageId {
        MessageId::new(self.accepted_at, partition, self.seq)
    }

    pub fn is_free(&self) -> bool {
        matches!(self.end, End::Freed | End::Forgotten)
    }

    /// When a store may drop the record with its whole bucket: its end of retention, rounded up
    /// by at most an eighth, so that the keys of one queue share about nine buckets.
    pub fn drop_at(&self) -> u64 {
        drop_at(self.finished_at, self.expires_at)
    }
}

/// See [`KeyRecord::drop_at`]. Depends only on the record, because deleting a row must find its
/// bucket again.
pub(crate) fn drop_at(finished_at: Time, expires_at: Time) -> u64 {
    if expires_at == Time::NEVER {
        return u64::MAX;
    }
    let width = (expires_at.since(finished_at) / 8).max(1_000);
    let width = 1u64 << (63 - width.leading_zeros());
    let bucket = expires_at.0.div_ceil(width).saturating_mul(width);
    debug_assert!(bucket >= expires_at.0);
    bucket
}

/// One thing that happened to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub at: Time,
    pub what: What,
    /// The worker, if one did it.
    pub worker: Arc<str>,
    /// The error of a failure, the name of a recovery point, the count of duplicates.
    pub detail: Arc<str>,
}

macro_rules! what {
    ($($name:ident = $number:literal $text:literal,)+) => {
        /// Kinds of events. The numbers are on disk and never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum What { $($name = $number,)+ }

        impl What {
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

what! {
    Sent = 0 "sent",
    Duplicate = 1 "duplicate",
    Leased = 2 "leased",
    Lost = 3 "lost",
    Failed = 4 "failed",
    Released = 5 "released",
    Saved = 6 "saved",
    Begun = 7 "begun",
    Done = 8 "done",
    Dead = 9 "dead",
    Parked = 10 "parked",
    Redriven = 11 "redriven",
    Replayed = 12 "replayed",
    Forgotten = 13 "forgotten",
    Discarded = 14 "discarded",
    Resolved = 15 "resolved",
    Claimed = 16 "claimed",
    Freed = 17 "freed",
    Rerun = 18 "rerun",
}

/// Adds an event, dropping the oldest if there are too many. Consecutive duplicates are one event
/// with a count, so that a retry storm does not push everything else out.
pub(crate) fn remember(history: &mut Vec<Event>, event: Event) {
    if event.what == What::Duplicate {
        return remember_duplicates(history, event.at, 1);
    }
    push(history, event);
}

/// Adds `count` duplicates, the last of which came at `at`.
pub(crate) fn remember_duplicates(history: &mut Vec<Event>, at: Time, count: u64) {
    if let Some(last) = history.last_mut().filter(|last| last.what == What::Duplicate) {
        let count = last.detail.parse::<u64>().unwrap_or(1).saturating_add(count);
        last.at = at;
        last.detail = count.to_string().into();
        return;
    }
    let (worker, detail) = (crate::row::nobody(), count.to_string().into());
    push(history, Event { at, what: What::Duplicate, worker, detail });
}

fn push(history: &mut Vec<Event>, event: Event) {
    if history.len() >= limits::HISTORY_MAX {
        history.remove(0);
    }
    history.push(event);
    debug_assert!(history.len() <= limits::HISTORY_MAX);
}

const END_MASK: u8 = 0b11;
const HAS_PARTS: u8 = 1 << 2;
const HAS_RESULT: u8 = 1 << 3;
const HAS_MORE: u8 = 1 << 4;
const OWN_FINGERPRINT: u8 = 1 << 5;
const FOREVER: u8 = 1 << 6;
/// The retention is a whole number of seconds, which most are: three bytes instead of five.
const SECONDS: u8 = 1 << 7;

const _: () = assert!(End::Forgotten as u8 <= END_MASK, "how it ended fits the flags");

/// Appends a record. About 50 bytes for a life without incident and an empty result.
pub(crate) fn encode(record: &KeyRecord, out: &mut Vec<u8>) {
    encode_apart(record, false, out);
}

/// Like `encode`; if `apart`, the body of the result is kept elsewhere and an empty one written.
pub(crate) fn encode_apart(record: &KeyRecord, apart: bool, out: &mut Vec<u8>) {
    // Times are written as differences, which requires this order.
    debug_assert!(record.leased_at >= record.accepted_at);
    debug_assert!(record.finished_at >= record.accepted_at);
    debug_assert!(record.expires_at >= record.finished_at);
    let retention = record.expires_at.since(record.finished_at);
    let forever = record.expires_at == Time::NEVER;
    let seconds = retention.is_multiple_of(1_000);
    let fingerprint = &record.fingerprint;
    let has_parts = fingerprint.group != 0;
    let has_more = record.duplicates != 0
        || record.losses != 0
        || record.generation != 0
        || record.error.is_some()
        || !record.history.is_empty()
        || !record.points.is_empty()
        || record.content.is_some()
        || record.dated_ahead.is_some();
    let mut flags = record.end as u8;
    for (set, flag) in [
        (has_parts, HAS_PARTS),
        (record.result.is_some(), HAS_RESULT),
        (has_more, HAS_MORE),
        (fingerprint.own, OWN_FINGERPRINT),
        (forever, FOREVER),
        (seconds && !forever, SECONDS),
    ] {
        flags |= if set { flag } else { 0 };
    }
    out.u8(flags);
    out.number(record.seq);
    out.number(record.accepted_at.0);
    out.number(record.leased_at.since(record.accepted_at));
    out.number(record.finished_at.since(record.accepted_at));
    if !forever {
        out.number(if seconds { retention / 1_000 } else { retention });
    }
    out.number(record.attempts.into());
    out.number(record.fence.epoch().into());
    out.number(record.fence.counter());
    out.text(&record.worker);
    out.fixed(&fingerprint.body);
    if has_parts {
        encode_parts(fingerprint, out);
    }
    match &record.result {
        Some(result) if apart => {
            out.text(result.content_type.as_deref().unwrap_or_default());
            out.bytes(&[]);
        }
        Some(result) => encode_blob(result, out),
        None => {}
    }
    if has_more {
        encode_more(record, out);
    }
}

fn encode_more(record: &KeyRecord, out: &mut Vec<u8>) {
    out.number(record.duplicates);
    out.number(record.losses.into());
    out.number(record.generation.into());
    let present = [record.error.is_some(), record.content.is_some(), record.dated_ahead.is_some()];
    out.u8(present.iter().rev().fold(0, |bits, is| bits << 1 | u8::from(*is)));
    out.text(record.error.as_deref().unwrap_or_default());
    encode_history(&record.history, out);
    encode_points(&record.points, out);
    if let Some(content) = &record.content {
        encode_content(content, out);
    }
    if let Some(dated) = record.dated_ahead {
        out.number(dated.0);
    }
}

/// Decodes a record; malformed bytes are refused.
pub(crate) fn decode(bytes: &[u8]) -> Result<KeyRecord, BadBytes> {
    let mut reader = Reader::new(bytes);
    let reader = &mut reader;
    let flags = reader.u8("record")?;
    let end = match flags & END_MASK {
        0 => End::Done,
        1 => End::Discarded,
        2 => End::Freed,
        _ => End::Forgotten,
    };
    let seq = reader.number("seq")?;
    let accepted_at = Time(reader.number("accepted_at")?);
    let leased_at = accepted_at.plus(reader.number("leased_at")?);
    let finished_at = accepted_at.plus(reader.number("finished_at")?);
    let expires_at = if flags & FOREVER != 0 {
        Time::NEVER
    } else {
        let unit = if flags & SECONDS != 0 { 1_000 } else { 1 };
        finished_at.plus(reader.number("retention")?.saturating_mul(unit))
    };
    let attempts = reader.u32("attempts")?;
    let fence = decode_fence(reader)?;
    let worker = reader.text("worker")?.into();
    let body = reader.fixed("fingerprint")?;
    let group = if flags & HAS_PARTS != 0 { decode_parts(reader)? } else { 0 };
    let own = flags & OWN_FINGERPRINT != 0;
    let result = if flags & HAS_RESULT != 0 { Some(decode_blob(reader)?) } else { None };
    let mut record = KeyRecord {
        end,
        seq,
        accepted_at,
        leased_at,
        finished_at,
        expires_at,
        attempts,
        generation: 0,
        fence,
        worker,
        fingerprint: Fingerprint { body, group, own },
        duplicates: 0,
        losses: 0,
        error: None,
        result,
        history: Vec::new(),
        points: BTreeMap::new(),
        content: None,
        dated_ahead: None,
    };
    if flags & HAS_MORE != 0 {
        record.duplicates = reader.number("duplicates")?;
        record.losses = reader.u32("losses")?;
        record.generation = reader.u32("generation")?;
        let present = reader.u8("error")?;
        let error = reader.text("error")?;
        record.error = (present & 1 != 0).then(|| error.into());
        record.history = decode_history(reader)?;
        record.points = decode_points(reader)?;
        // Records of 0.1 have neither.
        if present & 2 != 0 {
            record.content = Some(decode_content(reader)?);
        }
        if present & 4 != 0 {
            record.dated_ahead = Some(Time(reader.number("dated")?));
        }
    }
    reader.end()?;
    Ok(record)
}

/// The bucket of an encoded record, without decoding the rest.
pub(crate) fn peek_drop_at(bytes: &[u8]) -> u64 {
    let mut reader = Reader::new(bytes);
    let mut peek = || {
        let flags = reader.u8("record")?;
        if flags & FOREVER != 0 {
            return Ok(u64::MAX);
        }
        reader.number("seq")?;
        let accepted_at = Time(reader.number("accepted_at")?);
        reader.number("leased_at")?;
        let finished_at = accepted_at.plus(reader.number("finished_at")?);
        let unit = if flags & SECONDS != 0 { 1_000 } else { 1 };
        let retention = reader.number("retention")?.saturating_mul(unit);
        Ok::<_, BadBytes>(drop_at(finished_at, finished_at.plus(retention)))
    };
    peek().unwrap_or(u64::MAX)
}

pub(crate) fn encode_fence(fence: Fence, out: &mut Vec<u8>) {
    out.number(fence.epoch().into());
    out.number(fence.counter());
}

pub(crate) fn decode_fence(reader: &mut Reader<'_>) -> Result<Fence, BadBytes> {
    let epoch = reader.u32("epoch")?;
    let counter = reader.number("fence")?;
    if epoch >= Fence::EPOCHS || counter >= 1 << Fence::COUNTER_BITS {
        return Err(BadBytes::Bounds("fence"));
    }
    Ok(Fence::new(epoch, counter))
}

pub(crate) fn encode_blob(blob: &Blob, out: &mut Vec<u8>) {
    out.text(blob.content_type.as_deref().unwrap_or_default());
    out.bytes(&blob.body);
}

pub(crate) fn decode_blob(reader: &mut Reader<'_>) -> Result<Blob, BadBytes> {
    let content_type = match reader.text("content type")? {
        "" => None,
        text => Some(text.into()),
    };
    Ok(Blob { content_type, body: Bytes::copy_from_slice(reader.bytes("body")?) })
}

pub(crate) fn encode_error(error: Option<&str>, out: &mut Vec<u8>) {
    out.u8(error.is_some().into());
    out.text(error.unwrap_or_default());
}

pub(crate) fn decode_error(reader: &mut Reader<'_>) -> Result<Option<Arc<str>>, BadBytes> {
    let present = reader.u8("error")? != 0;
    let text = reader.text("error")?;
    Ok(present.then(|| text.into()))
}

pub(crate) fn encode_history(history: &[Event], out: &mut Vec<u8>) {
    debug_assert!(history.len() <= limits::HISTORY_MAX, "more would not be read back");
    out.number(history.len() as u64);
    for event in history {
        out.u8(event.what as u8);
        out.number(event.at.0);
        out.text(&event.worker);
        out.text(&event.detail);
    }
}

pub(crate) fn decode_history(reader: &mut Reader<'_>) -> Result<Vec<Event>, BadBytes> {
    let count = reader.count("history")?;
    if count > limits::HISTORY_MAX {
        return Err(BadBytes::Bounds("history"));
    }
    let mut history = Vec::with_capacity(count);
    for _ in 0..count {
        let number = reader.u8("event")?;
        let what = What::from_number(number).ok_or(BadBytes::Tag("event", number))?;
        let at = Time(reader.number("event")?);
        let worker = reader.text("event")?.into();
        let detail = reader.text("event")?.into();
        history.push(Event { at, what, worker, detail });
    }
    Ok(history)
}

pub(crate) fn encode_points(points: &BTreeMap<String, Bytes>, out: &mut Vec<u8>) {
    debug_assert!(points.len() <= limits::RECOVERY_POINTS_MAX, "more would not be read back");
    out.number(points.len() as u64);
    for (name, data) in points {
        out.text(name);
        out.bytes(data);
    }
}

pub(crate) fn decode_points(reader: &mut Reader<'_>) -> Result<BTreeMap<String, Bytes>, BadBytes> {
    let count = reader.count("recovery points")?;
    if count > limits::RECOVERY_POINTS_MAX {
        return Err(BadBytes::Bounds("recovery points"));
    }
    let mut points = BTreeMap::new();
    for _ in 0..count {
        let name = reader.text("point")?.to_owned();
        points.insert(name, Bytes::copy_from_slice(reader.bytes("point")?));
    }
    Ok(points)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::recipe::Recipe;

    pub(crate) fn uneventful() -> KeyRecord {
        KeyRecord {
            end: End::Done,
            seq: 100_000_000,
            accepted_at: Time(1_700_000_000_000),
            leased_at: Time(1_700_000_000_004),
            finished_at: Time(1_700_000_000_012),
            expires_at: Time(1_700_000_000_012 + 604_800_000),
            attempts: 1,
            generation: 0,
            fence: Fence::new(3, 100_000_000),
            worker: "billing-1".into(),
            fingerprint: Recipe::First.fingerprint(b"body", None),
            duplicates: 0,
            losses: 0,
            error: None,
            result: None,
            history: Vec::new(),
            points: BTreeMap::new(),
            content: None,
            dated_ahead: None,
        }
    }

    fn eventful() -> KeyRecord {
        let event = |what, detail: &str| Event {
            at: Time(5),
            what,
            worker: "w".into(),
            detail: detail.into(),
        };
        KeyRecord {
            end: End::Forgotten,
            expires_at: Time::NEVER,
            generation: 2,
            fingerprint: Recipe::First.fingerprint(b"", Some("g")),
            duplicates: 7,
            losses: 1,
            error: Some("timeout".into()),
            result: Some(Blob { content_type: Some("a/b".into()), body: Bytes::from_static(b"r") }),
            points: [("charged".to_owned(), Bytes::from_static(b"1"))].into(),
            history: vec![event(What::Lost, ""), event(What::Duplicate, "7")],
            dated_ahead: Some(Time(1_700_000_000_000)),
            ..uneventful()
        }
    }

    #[test]
    fn k13_records_read_back_and_no_cut_reads_as_one() {
        let odd = KeyRecord { expires_at: Time(1_700_000_000_013), ..uneventful() };
        let content = Content::builder("k").header("a", "b").build(b"body").unwrap();
        let kept = KeyRecord { content: Some(content), ..uneventful() };
        for record in [uneventful(), eventful(), odd, kept] {
            let mut bytes = Vec::new();
            encode(&record, &mut bytes);
            assert_eq!(decode(&bytes).unwrap(), record);
            assert_eq!(peek_drop_at(&bytes), record.drop_at());
            for cut in 0..bytes.len() {
                assert!(decode(&bytes[..cut]).is_err(), "cut at {cut}");
            }
            bytes.push(0);
            assert_eq!(decode(&bytes), Err(BadBytes::LeftOver(1)));
        }
    }

    #[test]
    fn k13_an_uneventful_record_is_small() {
        let mut bytes = Vec::new();
        encode(&uneventful(), &mut bytes);
        assert!(bytes.len() <= 56, "{} bytes", bytes.len());
    }

    #[test]
    fn a_bucket_ends_after_the_retention_and_not_much_later() {
        for retention in [1_000, 60_000, 604_800_000, 31_622_400_000] {
            let finished = Time(1_700_000_000_123);
            let bucket = drop_at(finished, finished.plus(retention));
            assert!(bucket >= finished.0 + retention);
            assert!(bucket <= finished.0 + retention + (retention / 8).max(1_000));
        }
        assert_eq!(drop_at(Time(5), Time::NEVER), u64::MAX);
    }

    #[test]
    fn a_storm_of_duplicates_is_one_event_and_history_is_bounded() {
        let mut history = Vec::new();
        let event = |at, what| Event { at: Time(at), what, worker: "".into(), detail: "".into() };
        remember(&mut history, event(0, What::Lost));
        for at in 1..=1_000 {
            remember(&mut history, event(at, What::Duplicate));
        }
        assert_eq!(history.len(), 2);
        assert_eq!((&*history[1].detail, history[1].at), ("1000", Time(1_000)));
        for at in 0..100 {
            remember(&mut history, event(at, What::Failed));
        }
        assert_eq!(history.len(), limits::HISTORY_MAX);
    }
}

//! Loading rows into memory before a decision.
//!
//! The caller repeats `needs` → fetch → `load_point`, `load_row` until nothing more is needed: a
//! key may lead to a message, a message to its group. Rows hold the state as of the last
//! checkpoint; what changed since is in memory and takes precedence.

mod need;

use std::sync::Arc;

use crate::codec::BadBytes;
use crate::command::{Browse, Command, KeyName, QueueName, Replay};
use crate::content::Content;
use crate::decision::{Decision, QueueId};
use crate::ids::{Seq, Time};
use crate::key::Digest;
use crate::machine::{Machine, Turn};
use crate::message::{Message, Slot};
use crate::moves::send::group_of;
use crate::moves::{expire, purge, redrive};
use crate::outcome::Place;
use crate::places::groups::{Group, Leads};
use crate::queue::Queue;
use crate::record;
use crate::row::{File, RowKey, decode_message, point, table};

pub use need::{Need, Range, RangeOf};

/// Commands whose memory is prefetched together.
pub const LOOK_AHEAD: usize = 64;

impl Command {
    /// Whether what the command needs depends on earlier commands of its batch: its needs are
    /// collected right before it is decided, not ahead.
    pub fn is_asked_late(&self) -> bool {
        matches!(self, Self::Receive(_) | Self::Expire | Self::Browse(_) | Self::Show(_))
    }

    /// Whether it changes what later commands of its batch need: those are all collected right
    /// before each is decided. Creating or deleting a queue changes the digest under which a key is
    /// looked up, and whether it is looked up at all.
    pub fn changes_needs(&self) -> bool {
        matches!(self, Self::Configure(_) | Self::Follow(_) | Self::Delete(_))
    }
}

impl Machine {
    /// Adds what the command needs and memory does not have. Called again after loading, it adds
    /// what the loaded rows lead to, until it adds nothing.
    pub fn needs(&self, command: &Command, needs: &mut Vec<Need>) {
        match command {
            Command::Send(send) => {
                self.need_send(&send.queue, send.digest, &send.content, needs);
            }
            Command::Claim(claim) => {
                self.need_send(&claim.queue, claim.digest, &claim.content, needs);
            }
            Command::DeadLetter(letter) => {
                let send = &letter.send;
                self.need_send(&send.queue, send.digest, &send.content, needs);
            }
            Command::Settle(settle) => self.need_key(&settle.lease.digest, needs),
            Command::Receive(receive) => {
                if let Some(queue) = self.queues.named(&receive.queue) {
                    let (max, several) = (receive.max as usize, receive.several_per_group);
                    self.need_head(queue, max, several, self.bounds.refill, needs);
                    if let Some(id) = &receive.receive_id {
                        self.need_receive(queue, id, needs);
                    }
                }
            }
            Command::Expire => {
                self.need_heads(needs);
                self.need_expire(needs);
            }
            Command::Look(key) | Command::Forget(key) | Command::Discard(key) => {
                self.need_named(key, needs);
            }
            Command::Replay(replay) => {
                self.need_named(&replay.key, needs);
                self.need_replayed(replay, needs);
            }
            Command::Resolve(resolve) => self.need_named(&resolve.key, needs),
            Command::Browse(browse) => self.need_browse(browse, needs),
            Command::Redrive(redrive) | Command::CheckRedrive(redrive) => {
                if let Some(queue) = self.queues.named(&redrive.queue) {
                    let (keys, group) = redrive::named(&redrive.select);
                    redrive::need_keys(self, queue, &keys, group, needs);
                }
            }
            Command::Configure(_)
            | Command::Follow(_)
            | Command::Delete(_)
            | Command::Pause(_)
            | Command::Resume(_)
            | Command::Purge(_)
            | Command::RedriveProgress { .. }
            | Command::CancelRedrive { .. }
            | Command::Relayed { .. } => {}
            Command::Show(name) => {
                if let Some(queue) = self.queues.named(name) {
                    // For the age of the oldest.
                    self.need_head(queue, 1, false, self.bounds.refill, needs);
                }
            }
        }
    }

    /// Adds what the commands of a batch need, as far as it is known before the first is decided.
    pub fn needs_ahead<'a>(
        &self,
        commands: impl Iterator<Item = &'a Command>,
        needs: &mut Vec<Need>,
    ) {
        let mut known = commands.take_while(|command| !command.changes_needs());
        let mut next = Vec::with_capacity(LOOK_AHEAD);
        loop {
            next.clear();
            next.extend(known.by_ref().take(LOOK_AHEAD));
            if next.is_empty() {
                break;
            }
            self.look_at(next.iter().copied());
            for command in next.iter().filter(|command| !command.is_asked_late()) {
                self.needs(command, needs);
            }
        }
    }

    /// Prefetches what the first [`LOOK_AHEAD`] commands will read: cache misses overlap, where
    /// each command by itself would wait for its own. It changes nothing.
    pub fn look_at<'a>(&self, commands: impl Iterator<Item = &'a Command>) {
        let mut slots = [None; LOOK_AHEAD];
        for (slot, command) in slots.iter_mut().zip(commands) {
            *slot = match command {
                Command::Send(send) => self.keys.peek(&send.digest),
                Command::Settle(settle) => self.keys.peek(&settle.lease.digest),
                _ => None,
            };
        }
        let peek = |slot: &Option<Slot>| slot.and_then(|slot| self.messages.peek(slot));
        std::hint::black_box(slots.iter().filter_map(peek).fold(0, |seen, seq| seen ^ seq));
    }

    /// Adds what a decision replayed from the journal needs.
    pub fn needs_of(&self, decision: &Decision, needs: &mut Vec<Need>) {
        for digest in decision.digests() {
            self.need_key(digest, needs);
        }
        let (queue, content) = match decision {
            Decision::Accepted(accepted) => (accepted.queue, &accepted.content),
            Decision::Replayed { queue, content, .. } => (*queue, content),
            _ => return,
        };
        if let Some(queue) = self.queues.get(queue) {
            self.need_group_of(queue, content, needs);
        }
    }

    /// Loads a point.
    pub fn load_point(
        &mut self,
        digest: &Digest,
        value: &[u8],
        needs: &mut Vec<Need>,
    ) -> Result<(), BadBytes> {
        let (tag, rest) = value.split_first().ok_or(BadBytes::Short("point"))?;
        match *tag {
            point::RECORD => {
                if self.keys.living(&self.messages, digest).is_none() {
                    self.keys.cache(*digest, record::decode(rest)?);
                }
            }
            point::ALIVE => {
                if self.is_news(digest) {
                    needs.push(Need::Row(RowKey::try_from(rest)?));
                }
            }
            point::GROUP => {
                if self.is_unknown(digest) {
                    let group = Group::decode(*digest, value, self.next_seq)?;
                    self.add_group(group);
                    self.regroup(digest);
                }
            }
            other => return Err(BadBytes::Tag("point", other)),
        }
        Ok(())
    }

    /// Loads a row.
    pub fn load_row(
        &mut self,
        key: &[u8],
        value: &[u8],
        needs: &mut Vec<Need>,
    ) -> Result<(), BadBytes> {
        let key = RowKey::try_from(key)?;
        match key.tag() {
            table::MESSAGE => self.admit(decode_message(key, value)?, needs),
            table::LEAD => {
                let bytes = key.as_slice();
                let digest = bytes.last_chunk().ok_or(BadBytes::Short("lead"))?;
                let queue = bytes.get(1..).and_then(<[u8]>::first_chunk);
                let queue = u32::from_be_bytes(*queue.ok_or(BadBytes::Short("lead"))?);
                self.need_group(queue, &Digest(*digest), needs);
            }
            other => return Err(BadBytes::Tag("row", other)),
        }
        Ok(())
    }

    /// The range was read up to the row `last`. If it was `left_off`, there may be more, and its
    /// reader remembers where to continue.
    pub fn loaded(&mut self, need: &Need, last: Option<&[u8]>, left_off: bool) {
        let Need::Range(range) = need else { return };
        let Range { of, from, to, .. } = &**range;
        if let RangeOf::Ready(queue) | RangeOf::Leads(queue) | RangeOf::Members(queue, _) = of {
            self.heads.was_read(*queue, self.bounds.refill);
        }
        assert!(last.is_some() || !left_off, "a range is left off behind a row");
        let all = !left_off;
        let last = last.and_then(|last| RowKey::try_from(last).ok());
        let last_seq = last.map_or(0, |last| seq_of(&last));
        match of {
            RangeOf::Browse if all => {}
            RangeOf::Browse => self.browsed.push((*from, last_seq)),
            RangeOf::Ready(queue) => {
                if let Some(queue) = self.queues.get_mut(*queue)
                    && let Some(gap) = queue.ready.gap()
                {
                    queue.ready.advance_gap(if all { gap.to } else { last_seq + 1 });
                }
            }
            RangeOf::Members(_, digest) => {
                if let Some(group) = self.groups.get_mut(digest)
                    && let Some(gap) = group.members.gap()
                {
                    group.members.advance_gap(if all { gap.to } else { last_seq + 1 });
                }
                self.regroup(digest);
            }
            RangeOf::Leads(queue) => {
                if let Some(queue) = self.queues.get_mut(*queue) {
                    let last = last.filter(|_| left_off).and_then(|last| lead_of(&last));
                    Leads::advance(&mut queue.leads, last);
                }
            }
            RangeOf::Delayed(queue) => {
                let next = last.and_then(|last| delayed_of(&last)).filter(|_| !all);
                if let Some(queue) = self.queues.get_mut(*queue) {
                    queue.delayed.advance_unloaded(next.map(|(due, seq)| (due, seq + 1)));
                    let due = queue.delayed.next_deadline().unwrap_or(Time::NEVER);
                    self.due(due);
                }
            }
            RangeOf::Purge(queue) => {
                let purge = self.queues.get_mut(*queue).and_then(|queue| queue.purge.as_mut());
                if let Some(purge) = purge {
                    purge.cursor = last.filter(|_| !all).map(RowKey::next);
                    debug_assert!(purge.cursor.is_none_or(|cursor| cursor < *to));
                }
            }
            RangeOf::Redrive(queue, _) => {
                let (from, horizon) = (seq_of(from), if all { Seq::MAX } else { last_seq });
                debug_assert!(horizon >= from, "rows are read from the cursor on");
                let jobs = self.queues.get_mut(*queue).map(|queue| queue.redrives.values_mut());
                // What one job reads, the others need not read.
                for job in jobs.into_iter().flatten().filter(|job| job.cursor >= from) {
                    job.horizon = job.horizon.max(horizon);
                }
            }
        }
    }

    /// What was needed is not in the rows. A group without a row has nothing unfinished.
    pub fn absent(&mut self, need: &Need) {
        match need {
            Need::Point(digest) => self.keys.note_absent(digest),
            Need::Group(queue, digest) if self.groups.get(digest).is_none() => {
                self.add_group(Group::new(*digest, *queue));
                self.asked.push(*digest);
            }
            Need::Group(..) | Need::Row(_) | Need::Range(_) => {}
        }
    }

    /// Drops what was loaded for the batch that was decided.
    pub fn unload(&mut self) {
        self.keys.finish_batch();
        self.browsed.clear();
        for digest in std::mem::take(&mut self.asked) {
            self.regroup(&digest);
        }
    }

    /// Loads a message, unless memory has a newer state.
    fn admit(&mut self, message: Message, needs: &mut Vec<Need>) {
        if !self.is_news(&message.digest) || self.queues.get(message.queue).is_none() {
            return;
        }
        if let Some(group) = &message.group
            && self.is_unknown(group)
        {
            // The group's row comes first: counts must not start from nothing.
            self.need_group(message.queue, group, needs);
            needs.extend(message.row.map(Need::Row));
            return;
        }
        let (place, seq) = (message.place(), message.seq);
        let (queue_id, group) = (message.queue, message.group);
        let slot = self.insert_message(message);
        match (place, group) {
            (Place::Ready, Some(group)) => {
                if let Some(group) = self.groups.get_mut(&group) {
                    group.members.admit(seq, slot);
                }
                self.index_expiring(slot);
                self.regroup(&group);
            }
            (Place::Ready, None) => {
                if let Some(queue) = self.queues.get_mut(queue_id) {
                    queue.ready.admit(seq, slot);
                }
                self.index_expiring(slot);
            }
            (Place::Leased, _) => {
                if let Some(queue) = self.queues.get_mut(queue_id) {
                    queue.leased.come_back(self.messages.at(slot));
                    let was_away = self.leases_away.remove(&seq);
                    debug_assert!(was_away.is_some(), "a lease comes back once");
                }
                self.index(slot);
            }
            _ => self.index(slot),
        }
    }

    fn index_expiring(&mut self, slot: crate::message::Slot) {
        let message = self.messages.at(slot);
        let (ttl_at, seq, queue) = (message.ttl_at, message.seq, message.queue);
        if ttl_at != Time::NEVER
            && let Some(queue) = self.queues.get_mut(queue)
        {
            queue.expiring.insert((ttl_at, seq), slot);
            self.due(ttl_at);
        }
    }

    /// Whether a row may hold something that memory does not.
    fn is_news(&self, digest: &Digest) -> bool {
        !self.keys.is_known(&self.messages, digest)
    }

    fn need_send(
        &self,
        queue: &QueueName,
        digest: Digest,
        content: &Content,
        needs: &mut Vec<Need>,
    ) {
        let Some(queue) = self.queues.named(queue) else { return };
        if content.has_key() {
            let digest = self.scoped(queue, digest, content);
            self.need_key(&digest, needs);
        }
        self.need_group_of(queue, content, needs);
    }

    /// The group of the replayed message: of the content sent along, or of the one kept.
    fn need_replayed(&self, replay: &Replay, needs: &mut Vec<Need>) {
        let Some(queue) = self.queues.named(&replay.key.queue) else { return };
        let given = replay.content.as_ref().map(|(content, _)| Arc::clone(content));
        let kept = || {
            let digest = self.digest_of(queue, &replay.key.key, replay.key.group.as_deref());
            self.keys.record(&self.messages, &digest).and_then(|record| record.content)
        };
        if let Some(content) = given.or_else(kept) {
            self.need_group_of(queue, &content, needs);
        }
    }

    fn need_group_of(&self, queue: &Queue, content: &Content, needs: &mut Vec<Need>) {
        if let Some(group) = group_of(queue, content) {
            self.need_group(queue.id, &group, needs);
        }
    }

    pub(crate) fn need_key(&self, digest: &Digest, needs: &mut Vec<Need>) {
        if self.is_news(digest) && !self.keys.is_cached(digest) {
            needs.push(Need::Point(*digest));
        }
    }

    fn need_group(&self, queue: QueueId, group: &Digest, needs: &mut Vec<Need>) {
        if self.is_unknown(group) {
            needs.push(Need::Group(queue, *group));
        }
    }

    /// Whether only the rows know a group. The row of a group that ended since is outdated.
    fn is_unknown(&self, group: &Digest) -> bool {
        self.groups.get(group).is_none() && !self.keys.is_written(group)
    }

    fn need_named(&self, key: &KeyName, needs: &mut Vec<Need>) {
        if let Some(queue) = self.queues.named(&key.queue) {
            for digest in self.digests_of(queue, key) {
                self.need_key(&digest, needs);
            }
        }
    }

    fn need_receive(&self, queue: &Queue, id: &str, needs: &mut Vec<Need>) {
        let digest = Digest::of_receive(queue.id, id);
        if let Some(remembered) = self.receives.by_id.get(&digest) {
            for lease in &remembered.leases {
                self.need_key(&lease.digest, needs);
            }
        }
    }

    /// Enough of the oldest to deliver `max`. At most `rows` are read at once.
    pub(crate) fn need_head(
        &self,
        queue: &Queue,
        max: usize,
        several: bool,
        rows: usize,
        needs: &mut Vec<Need>,
    ) {
        let messages = &self.messages;
        let is_here = |seq, slot| messages.is_ready(seq, slot);
        let size = |slot| messages.at(slot).content.size();
        let most = self.bounds.receive_bytes;
        if let Some(gap) = queue.ready.gap()
            && !queue.ready.has_in_front(max, is_here, size, most)
        {
            needs.push(range(
                rows,
                RowKey::filed(queue.id, File::Ready, gap.from),
                RowKey::filed(queue.id, File::Ready, gap.to),
                RangeOf::Ready(queue.id),
            ));
        }
        // Groups that only the rows know come before younger ones that memory knows.
        if let Some(Leads { from, to }) = queue.leads
            && queue.open.range(..from).take(max).count() < max
        {
            needs.push(range(
                rows,
                RowKey::lead(queue.id, from.0, &from.1),
                RowKey::leads(queue.id, to),
                RangeOf::Leads(queue.id),
            ));
        }
        let (mut absent, mut bytes) = (0, 0);
        for (lead, digest) in queue.open.iter().take(max) {
            if absent >= self.bounds.groups_at_once || bytes >= most {
                break;
            }
            let Some(group) = self.groups.get(digest) else { continue };
            bytes += group.members.oldest(is_here).next().map_or(0, |(_, slot)| size(slot));
            if let Some(gap) = group.members.gap()
                && (*lead >= gap.from
                    || several && !group.members.has_in_front(max, is_here, size, most))
            {
                absent += 1;
                needs.push(range(
                    rows,
                    RowKey::member(queue.id, digest, gap.from),
                    RowKey::member(queue.id, digest, gap.to),
                    RangeOf::Members(queue.id, *digest),
                ));
            }
        }
    }

    fn need_expire(&self, needs: &mut Vec<Need>) {
        if self.next_due > self.now {
            return;
        }
        let mut named = false;
        let (mut left, mut bytes) = (self.bounds.tick_step, 0);
        for (queue, turn) in expire::round(self, self.now) {
            match turn {
                Turn::Lives => {}
                Turn::Leases => self.need_lost(queue, &mut left, &mut bytes, needs),
                Turn::Delays => self.need_delayed(queue, needs),
                Turn::Purge => self.need_purge(queue, needs),
                // One redrive that names keys per tick: many together would load too much.
                Turn::Redrive(job) if redrive::is_by_keys(queue, &job) => {
                    if !std::mem::replace(&mut named, true) {
                        redrive::need_left(self, queue, &job, needs);
                    }
                }
                Turn::Redrive(job) => redrive::need_rows(self, queue, &job, needs),
            }
        }
    }

    /// Expired leases whose messages are only in the rows: together with those in memory no more
    /// than one tick expires, and no more memory than a receive takes. The rest is left to the next
    /// ticks: a message loaded now but not expired now could not be evicted again.
    fn need_lost(&self, queue: &Queue, left: &mut usize, bytes: &mut usize, needs: &mut Vec<Need>) {
        let most = self.bounds.expire_step.min(*left);
        let mut lost = 0;
        for slot in queue.leased.expired(&self.messages, self.now).take(most) {
            lost += 1;
            *bytes += self.messages.at(slot).footprint();
        }
        let over = queue.leased.away().take_while(|(deadline, _)| *deadline <= self.now);
        for (_, lease) in over.take(most - lost) {
            if *bytes > self.bounds.receive_bytes {
                break;
            }
            lost += 1;
            *bytes += lease.bytes;
            needs.push(Need::Point(lease.digest));
        }
        *left -= lost;
    }

    fn need_delayed(&self, queue: &Queue, needs: &mut Vec<Need>) {
        if let Some((due, seq)) = queue.delayed.unloaded_due(self.now) {
            needs.push(self.range(
                RowKey::delayed(queue.id, due, seq),
                RowKey::file(queue.id, File::Delayed).after_prefix(),
                RangeOf::Delayed(queue.id),
            ));
        }
    }

    fn need_purge(&self, queue: &Queue, needs: &mut Vec<Need>) {
        if let Some(from) = queue.purge.as_ref().and_then(|purge| purge.cursor) {
            // No more than the next step removes; the rest would be evicted meanwhile.
            let victims = purge::victims(self, queue);
            if purge::are_all(queue, &victims) {
                return;
            }
            let limit = self.bounds.job_step - victims.len();
            let to = RowKey::message_prefix(queue.id).after_prefix();
            let of = RangeOf::Purge(queue.id);
            if limit > 0 {
                needs.push(Need::Range(Box::new(Range { from, to, limit, of })));
            }
        }
    }

    fn need_browse(&self, browse: &Browse, needs: &mut Vec<Need>) {
        let Some(queue) = self.queues.named(&browse.queue) else { return };
        if let Some((from, to)) = self.browsed_rows(queue, browse) {
            let limit = browse.limit.clamp(1, self.bounds.browse) + 1;
            let of = RangeOf::Browse;
            needs.push(Need::Range(Box::new(Range { from, to, limit, of })));
        }
    }

    /// The rows of a page, if they are in the order of the page.
    pub(crate) fn browsed_rows(&self, queue: &Queue, browse: &Browse) -> Option<(RowKey, RowKey)> {
        let file = match browse.place {
            Place::Ready => File::Ready,
            Place::Leased => File::Leased,
            Place::Parked => File::Parked,
            Place::Dead => File::Dead,
            _ => return None,
        };
        let from = browse.cursor.map_or(0, |cursor| cursor.saturating_add(1));
        let to = RowKey::file(queue.id, file).after_prefix();
        Some((RowKey::filed(queue.id, file, from), to))
    }

    pub(crate) fn range(&self, from: RowKey, to: RowKey, of: RangeOf) -> Need {
        range(self.bounds.refill, from, to, of)
    }
}

fn range(limit: usize, from: RowKey, to: RowKey, of: RangeOf) -> Need {
    debug_assert!(from <= to, "a range ends after it begins");
    Need::Range(Box::new(Range { from, to, limit, of }))
}

/// The number at the end of a message row's name.
fn seq_of(key: &RowKey) -> Seq {
    key.as_slice().last_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// The number and the group that a lead row is named for.
fn lead_of(key: &RowKey) -> Option<(Seq, Digest)> {
    let bytes = key.as_slice();
    let (seq, group) = (bytes.get(5..)?.first_chunk()?, bytes.get(13..)?.first_chunk()?);
    Some((u64::from_be_bytes(*seq), Digest(*group)))
}

fn delayed_of(key: &RowKey) -> Option<(Time, Seq)> {
    let due = key.as_slice().get(6..)?.first_chunk()?;
    Some((Time(u64::from_be_bytes(*due)), seq_of(key)))
}

//! Follows what the machine decided by itself as time went on.
//!
//! The rules say what a lost lease, an ended life, a purge and a redrive do, not in which of many
//! steps. So the machine chooses the step and the model checks that it may be taken: that what
//! moved had to move, and that nothing was passed over.

use hapax_core::*;

use super::state::*;

impl Model {
    /// Takes one decision of a tick. `queue` is the one that it names, unless that was deleted:
    /// to a caller it is gone, and to the model with it all that was in it.
    pub(crate) fn follow(&mut self, decision: &Decision, queue: Option<&str>) {
        match decision {
            Decision::Lost { digest, fence, .. } => {
                if let Some(index) = self.by_digest(digest)
                    && self.messages[index].fence() == Some(*fence)
                {
                    let deadline = self.messages[index].deadline().expect("a lease ends");
                    assert!(deadline <= self.at, "a lease holds until its deadline");
                    self.lost.push(*digest);
                    self.lose(index);
                }
            }
            Decision::Died { digest, .. } => {
                if let Some(index) = self.by_digest(digest) {
                    assert!(self.messages[index].is_over(self.at), "it had time to live");
                    self.die_of_age(index);
                }
            }
            Decision::Purged { digests, finished, .. } => {
                if let Some(queue) = queue {
                    self.follow_purge(queue, digests, *finished);
                }
            }
            Decision::Redriven { job, digests, matched, cursor, done, .. } => {
                if let Some(queue) = queue {
                    self.follow_redrive(queue, job, digests, *matched, *cursor, *done);
                }
            }
            other => panic!("time does not decide {other:?}"),
        }
    }

    fn by_digest(&self, digest: &Digest) -> Option<usize> {
        self.messages.iter().position(|message| message.digest == *digest)
    }

    fn follow_purge(&mut self, queue: &str, digests: &[Digest], finished: bool) {
        let found = self.queue_mut(queue);
        let (below, keys_from) = (found.purge.expect("somebody purged it"), found.keys_from);
        for digest in digests {
            let Some(index) = self.by_digest(digest) else {
                // A redrive of the same moment may have freed a claim.
                assert!(self.freed.contains(digest), "who is purged was there");
                continue;
            };
            let message = &self.messages[index];
            assert!(message.is_purged(queue, below), "nobody purged {message:?}");
            self.purge_one(index, self.messages[index].seq < keys_from);
        }
        if finished {
            // What a worker lost in this very step was left to the worker before.
            let left = self.messages.iter().filter(|left| !self.lost.contains(&left.digest));
            let left = left.filter(|message| message.is_purged(queue, below)).min_by_key(|m| m.seq);
            assert!(left.is_none(), "a purge is over, and passed over {left:?}");
            self.queue_mut(queue).purge = None;
        }
    }

    fn follow_redrive(
        &mut self,
        queue: &str,
        job: &Digest,
        digests: &[Digest],
        matched: u64,
        cursor: Seq,
        done: bool,
    ) {
        let name = QueueName::new(TENANT, queue).expect("a name");
        let id_of = |id: &str| Digest::of_id(&name, "redrive", id);
        let found = self.queue_mut(queue).jobs.iter().find(|(id, _)| id_of(id) == *job);
        let (id, mut job) = found.map(|(id, job)| (id.clone(), job.clone())).expect("a job");
        if job.view.by_keys {
            self.follow_keys(queue, &mut job, digests, cursor);
            assert_eq!((job.view.done, job.cursor), (done, cursor));
            self.queue_mut(queue).jobs.insert(id, job);
            return;
        }
        let seen = job.cursor..if done { Seq::MAX } else { cursor };
        for message in self.messages.iter().filter(|message| message.queue == queue) {
            // What died in this very moment may be too late for it.
            let is_old = matches!(message.state, State::Dead { at, .. } if at < self.at);
            let is_meant = is_old && seen.contains(&message.seq) && job.matches(message);
            let is_moved = job.view.dry_run || digests.contains(&message.digest);
            assert!(!is_meant || is_moved, "a redrive passed over {message:?}");
        }
        for digest in digests {
            // A purge of the same moment may have been faster.
            let Some(index) = self.by_digest(digest) else { continue };
            assert!(job.matches(&self.messages[index]), "not meant: {:?}", self.messages[index]);
            job.view.moved += 1;
            self.freed.extend(Some(*digest).filter(|_| self.messages[index].claim));
            self.redrive_one(index);
        }
        job.view.matched += matched;
        (job.cursor, job.view.done) = (cursor, done);
        self.queue_mut(queue).jobs.insert(id, job);
    }

    fn follow_keys(&mut self, queue: &str, job: &mut Job, digests: &[Digest], cursor: Seq) {
        let seen = usize::try_from(cursor - job.cursor).expect("a few");
        for scope in job.keys.drain(..seen).collect::<Vec<_>>() {
            let index = self.living(&scope);
            let dead = index.filter(|index| self.messages[*index].place() == Place::Dead);
            if !digests.contains(&self.digest(&scope)) {
                // What died in this very moment may be too late for it.
                let state = |index: usize| self.messages[index].state.clone();
                let is_old = |index| matches!(state(index), State::Dead { at, .. } if at < self.at);
                assert!(!dead.is_some_and(is_old), "a redrive passed over {scope:?} of {queue}");
                job.view.missing.push(scope.2.as_str().into());
                continue;
            }
            job.view.matched += 1;
            // A purge of the same moment may have been faster.
            if let Some(index) = dead.filter(|_| !job.view.dry_run) {
                job.view.moved += 1;
                let message = &self.messages[index];
                self.freed.extend(Some(message.digest).filter(|_| message.claim));
                self.redrive_one(index);
            }
        }
        job.cursor = cursor;
        job.view.done = job.keys.is_empty();
    }
}

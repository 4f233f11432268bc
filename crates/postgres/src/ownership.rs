//! Whether this process still owns a partition, and why not: shared by its journal, its volume and
//! its lane.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use hapax_store::journal::Wake;
use hapax_store::{Error, LogEnd, Stop};

use crate::call::{End, Owner};
use crate::lane::Watcher;
use crate::log::lock;
use crate::witness::Witness;

/// What the owner, its volume and its lane share.
pub(crate) struct Ownership {
    pub(crate) owner: Mutex<Option<Owner>>,
    /// Whether no failover can undo the first claim: it was answered, or a later statement was. One
    /// that was merely seen in the database may be gone with a primary.
    is_proved: AtomicBool,
    /// Held while the owner claims again: the database has its next claim before `owner` has.
    pub(crate) claiming: Mutex<()>,
    pub(crate) stop: Stop,
    pub(crate) wake: Wake,
    pub(crate) witness: Arc<Witness>,
}

impl Ownership {
    pub(crate) fn new(wake: Wake, witness: Arc<Witness>) -> Self {
        let (owner, claiming, stop) = (Mutex::default(), Mutex::default(), Stop::default());
        Self { owner, is_proved: AtomicBool::default(), claiming, stop, wake, witness }
    }

    pub(crate) fn owner(&self) -> Result<Owner, Error> {
        self.stop.check()?;
        let nobody = || Error::Stopped("the partition was not claimed".to_owned());
        lock(&self.owner).ok_or_else(nobody)
    }

    /// The first claim is committed for good.
    pub(crate) fn prove(&self) {
        self.is_proved.store(true, Ordering::Release);
    }

    /// The owner, after the database said that `before` is not: it may have claimed again
    /// meanwhile. `None` if it was replaced.
    pub(crate) fn owner_after(&self, before: Owner) -> Result<Option<Owner>, Error> {
        drop(lock(&self.claiming));
        self.owner().map(|owner| Some(owner).filter(|owner| *owner != before))
    }

    /// How far it is durable.
    pub(crate) fn reached(&self) -> Option<LogEnd> {
        self.witness.last()
    }

    /// Stops everything if the database ends before what it `had` made durable when that was asked:
    /// what is missing there is no damage, and nobody may go on before somebody has decided what to
    /// do.
    pub(crate) fn check_end(&self, label: &str, had: LogEnd, end: &End) -> Result<(), Error> {
        if end.last.sequence >= had.sequence && end.epoch >= had.epoch {
            return Ok(());
        }
        self.witness.write();
        Err(self.fail(Error::Regressed { file: label.to_owned(), had, found: end.last }))
    }

    /// Why the database has another claim than this owner's. Epochs only grow: one that is earlier
    /// is from before this owner, whoever has the partition there, or nobody. If its claim is not
    /// proved, a failover may have undone it, and nothing else.
    pub(crate) fn replaced(&self, label: &str, owner: Owner, end: &End) -> Error {
        if end.epoch >= owner.epoch || !self.is_proved.load(Ordering::Acquire) {
            return Error::Fenced { held: owner.epoch, newest: end.epoch };
        }
        let had = LogEnd { epoch: owner.epoch, ..self.reached().unwrap_or(end.last) };
        Error::Regressed { file: label.to_owned(), had, found: end.last }
    }

    /// Stops everything for this reason, the first one counts.
    pub(crate) fn fail(&self, error: Error) -> Error {
        self.stop.fail_by(&error);
        (self.wake)();
        self.stop.check().err().unwrap_or(error)
    }
}

impl Watcher for Ownership {
    fn changed(&self, last: LogEnd, ended: Option<Error>) {
        self.witness.note(last);
        if let Some(error) = ended {
            // The next start has to know how far it was, also if it comes before the next tick.
            if matches!(error, Error::Regressed { .. }) {
                self.witness.write();
            }
            self.stop.fail_by(&error);
        }
        (self.wake)();
    }

    fn tick(&self) {
        self.witness.write();
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_claim_that_was_merely_seen_and_is_gone_is_no_loss() {
        let ownership = Ownership::new(Arc::new(|| ()), Arc::default());
        let owner = Owner { partition: 0, epoch: 5, claim: Uuid::from_u128(1) };
        let last = LogEnd { epoch: 4, sequence: 9, chain: 7 };
        let end = |epoch| End { partition: 0, epoch, claim: None, owner: None, last };
        let why = |epoch| ownership.replaced("partition 0", owner, &end(epoch));
        assert!(matches!(why(4), Error::Fenced { held: 5, newest: 4 }), "{}", why(4));
        ownership.prove();
        assert!(matches!(why(4), Error::Regressed { .. }), "{}", why(4));
        assert!(matches!(why(6), Error::Fenced { held: 5, newest: 6 }), "{}", why(6));
    }
}

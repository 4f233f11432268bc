//! What a node answers that does not serve: why it does not, and who does.

use std::time::Duration;

use hapax_postgres::node::{Doing, Loss, State};
use hapax_postgres::{NodeRow, NodeState, Seen, Uuid};

use crate::doors::standby::Reason;

/// What a node says whose database has no room.
pub(super) const NO_ROOM: &str = "the database has no room";

/// Why a node does not serve, if that is not simply because another node does.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) why: String,
    /// Everybody may know it. Errors of the database are for its log: they name hosts and users.
    is_open: bool,
}

impl Trouble {
    pub(super) fn of(loss: Loss, why: String) -> Self {
        Self { why, is_open: matches!(loss, Loss::Regressed | Loss::Stalled) }
    }

    fn shown(&self) -> &str {
        if self.is_open { &self.why } else { "see its log" }
    }
}

/// What a node knows of itself and of the others.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) id: Uuid,
    pub(super) now: Duration,
    pub(super) state: &'a State,
    pub(super) seen: &'a Seen,
    pub(super) trouble: Option<&'a Trouble>,
    /// The database has no room.
    pub(super) is_held: bool,
    /// It does not know what became of the others.
    pub(super) is_cut_off: bool,
}

impl View<'_> {
    /// Another node that serves. One that halted owns what nobody may claim, and serves nobody.
    pub(super) fn serving(&self) -> Option<&NodeRow> {
        let is_other =
            |node: &&NodeRow| node.id != self.id && node.state != Some(NodeState::Halted);
        let serving = self.state.serving(self.now, self.seen).filter(is_other);
        serving.filter(|_| !self.is_cut_off)
    }

    pub(super) fn reason(&self) -> Reason {
        let serving = self.serving().map(|node| node.address.clone());
        let (why, needs_operator) = match (self.state.doing(), self.trouble) {
            (Doing::Halted, Some(trouble)) => {
                (format!("this node is halted: {}", trouble.shown()), true)
            }
            (Doing::Halted, None) => ("this node is halted: see its log".to_owned(), true),
            (Doing::Opening, _) => ("this node is taking over".to_owned(), false),
            (Doing::Serving { is_cut_off: true }, _) => {
                ("this node is cut off from the database".to_owned(), false)
            }
            (Doing::Serving { is_cut_off: false }, _) if self.is_held => {
                (NO_ROOM.to_owned(), false)
            }
            (Doing::Serving { is_cut_off: false }, _) => ("this node serves".to_owned(), false),
            (Doing::Standby | Doing::Closing, _) if self.is_cut_off => {
                ("this node is a standby, cut off from the database".to_owned(), false)
            }
            (Doing::Standby | Doing::Closing, Some(trouble)) => {
                (format!("this node is a standby after a failure: {}", trouble.shown()), false)
            }
            (Doing::Standby | Doing::Closing, None) => self.spare(serving.is_some()),
        };
        Reason { why, serving, needs_operator }
    }

    /// Of a spare with which nothing is wrong.
    fn spare(&self, is_served: bool) -> (String, bool) {
        let standby = "this node is a standby";
        match self.state.halted(self.now, self.seen) {
            Some(NodeRow { name, .. }) => {
                (format!("{standby}: nobody serves while the node {name} is halted"), true)
            }
            None if is_served => (standby.to_owned(), false),
            None => (format!("{standby}: nobody serves"), false),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_postgres::OwnerRow;

    const NOW: Duration = Duration::from_secs(100);

    /// What node 1 says `later`: a spare that has beaten and sees node 2, which owns everything,
    /// in this state.
    fn says(other: NodeState, later: Duration) -> Reason {
        let id = Uuid::from_u128;
        let node = |number, state| NodeRow {
            id: id(number),
            name: format!("n{number}"),
            address: format!("http://n{number}"),
            release: String::new(),
            feature: 1,
            state: Some(state),
            heartbeat: 1,
            told_ms: 0,
        };
        let owner = OwnerRow { partition: 0, epoch: 7, owner: Some(id(2)), intended: None };
        let nodes = vec![node(1, NodeState::Standby), node(2, other)];
        let seen = Seen { nodes, partitions: vec![owner] };
        let mut state = State::new(id(1));
        assert_eq!(state.beaten(NOW, NOW, &seen), [], "it stays a spare");
        let now = NOW + later;
        let is_cut_off = state.is_cut_off(now);
        let (trouble, is_held) = (None, false);
        View { id: id(1), now, state: &state, seen: &seen, trouble, is_held, is_cut_off }.reason()
    }

    #[test]
    fn a_spare_names_who_serves_only_while_it_can_know() {
        let named = says(NodeState::Serving, Duration::ZERO);
        assert_eq!(named.serving.as_deref(), Some("http://n2"));
        assert_eq!((named.why.as_str(), named.needs_operator), ("this node is a standby", false));
        let late = says(NodeState::Serving, Duration::from_secs(3));
        assert_eq!(late, Reason::new("this node is a standby, cut off from the database"));
    }

    #[test]
    fn a_spare_says_that_nobody_serves_and_whether_that_waits_for_an_operator() {
        let nobody = says(NodeState::Standby, Duration::ZERO);
        assert_eq!(nobody, Reason::new("this node is a standby: nobody serves"));
        let halted = says(NodeState::Halted, Duration::ZERO);
        assert!(halted.why.ends_with("nobody serves while the node n2 is halted"), "{halted:?}");
        assert!(halted.needs_operator && halted.serving.is_none(), "{halted:?}");
    }
}

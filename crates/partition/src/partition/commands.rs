//! Commands that wait to be decided.

use std::collections::VecDeque;

use hapax_core::Command;

/// Empty lists that a partition keeps for its caller to reuse.
pub const SPENT_MAX: usize = 64;

/// Commands in order, in the lists they were submitted in.
#[derive(Debug, Default)]
pub struct Commands {
    /// None of them is empty.
    lists: VecDeque<VecDeque<Command>>,
}

impl Commands {
    pub fn push(&mut self, list: Vec<Command>) {
        if !list.is_empty() {
            self.lists.push_back(list.into());
        }
    }

    pub fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    pub fn len(&self) -> usize {
        self.lists.iter().map(VecDeque::len).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Command> {
        self.lists.iter().flatten()
    }

    /// The next command; a list that is empty then is moved to `spent`.
    pub(super) fn pop(&mut self, spent: &mut Vec<Vec<Command>>) -> Option<Command> {
        let list = self.lists.front_mut()?;
        let command = list.pop_front();
        if list.is_empty()
            && let Some(list) = self.lists.pop_front()
            && spent.len() < SPENT_MAX
        {
            spent.push(list.into());
        }
        command
    }
}

impl From<Vec<Command>> for Commands {
    fn from(list: Vec<Command>) -> Self {
        let mut commands = Self::default();
        commands.push(list);
        commands
    }
}

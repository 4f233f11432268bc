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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_in_order_and_their_lists_are_handed_back_up_to_a_number() {
        let lists = SPENT_MAX + 3;
        let mut commands = Commands::default();
        for count in 0..lists {
            commands.push(Vec::new());
            let ids = (0..2).map(|number| (2 * count + number) as u64);
            let relayed = |id| Command::Relayed { id, arrival: hapax_core::Arrival::Later };
            commands.push(ids.map(relayed).collect());
        }
        assert_eq!(commands.len(), 2 * lists);
        assert_eq!(commands.iter().count(), 2 * lists);
        let mut spent = Vec::new();
        for next in 0..2 * lists as u64 {
            let command = commands.pop(&mut spent);
            assert!(matches!(command, Some(Command::Relayed { id, .. }) if id == next));
        }
        assert!(commands.is_empty() && commands.pop(&mut spent).is_none());
        assert_eq!(spent.len(), SPENT_MAX);
    }
}

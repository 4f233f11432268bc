//! The digest of a key in its queue, and the message that a name refers to.

use crate::command::KeyName;
use crate::config::DedupScope;
use crate::content::Content;
use crate::key::Digest;
use crate::machine::Machine;
use crate::message::Slot;
use crate::queue::Queue;

impl Machine {
    /// The digest under which the queue knows the key.
    pub(crate) fn scoped(&self, queue: &Queue, digest: Digest, content: &Content) -> Digest {
        match queue.config.dedup_scope {
            DedupScope::Queue => {
                debug_assert!(
                    !content.has_key()
                        || digest == self.recipe.key(&queue.name, None, content.key_bytes()),
                    "commands are made with the recipe of the data"
                );
                digest
            }
            DedupScope::Group => self.recipe.key(&queue.name, content.group(), content.key_bytes()),
        }
    }

    pub(crate) fn digest_of(&self, queue: &Queue, key: &str, group: Option<&str>) -> Digest {
        let group = group.filter(|_| queue.config.dedup_scope == DedupScope::Group);
        self.recipe.key(&queue.name, group, key)
    }

    /// The living message of the queue that a name refers to. An id alone would also find messages
    /// of other queues and tenants.
    pub(crate) fn living_of(&self, queue: &Queue, key: &KeyName) -> Option<Slot> {
        let digests = self.digests_of(queue, key);
        let mut living =
            digests.iter().filter_map(|digest| self.keys.living(&self.messages, digest));
        living.find(|slot| self.messages.at(*slot).queue == queue.id)
    }

    /// What a given key may refer to: a key, or the id of a message without one.
    pub(crate) fn digests_of(&self, queue: &Queue, key: &KeyName) -> Vec<Digest> {
        self.digests_named(queue, &key.key, key.group.as_deref())
    }

    pub(crate) fn digests_named(
        &self,
        queue: &Queue,
        key: &str,
        group: Option<&str>,
    ) -> Vec<Digest> {
        let mut digests = vec![self.digest_of(queue, key, group)];
        digests.extend(crate::ids::MessageId::parse(key).map(Digest::of_keyless));
        digests
    }
}

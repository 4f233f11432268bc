//! Which digest a key has in its queue, and which message a name means.

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
            DedupScope::Queue => digest,
            DedupScope::Group => {
                let (tenant, name) = (&queue.name.tenant, &queue.name.queue);
                Digest::of_key(tenant, name, content.group(), content.key())
            }
        }
    }

    pub(crate) fn digest_of(&self, queue: &Queue, key: &str, group: Option<&str>) -> Digest {
        let group = group.filter(|_| queue.config.dedup_scope == DedupScope::Group);
        Digest::of_key(&queue.name.tenant, &queue.name.queue, group, key)
    }

    /// The living message of the queue that a name means. An id alone would find those of other
    /// queues, and of other tenants.
    pub(crate) fn living_of(&self, queue: &Queue, key: &KeyName) -> Option<Slot> {
        let digests = self.digests_of(queue, key);
        let mut living =
            digests.iter().filter_map(|digest| self.keys.living(&self.messages, digest));
        living.find(|slot| self.messages.at(*slot).queue == queue.id)
    }

    /// What a key given by name may mean: itself, or the id of a message that came without one.
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

//! What the statements promise, as a suite: run on PostgreSQL, and on whatever stands in for it.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a suite of tests: an error is a failure of the database"
)]

use std::sync::Arc;

use hapax_store::{Epoch, Sequence};
use uuid::Uuid;

use crate::call::{Answer, Appended, Backend, Batch, Call, Owner, Part, Piece, Position, chain};
use crate::members::{Node, NodeState};

/// Runs every check on a new broker with at least four partitions.
pub fn run(backend: &dyn Backend) {
    let mut suite = Suite { backend, next: 1 };
    suite.appends();
    suite.claims_and_appends();
    suite.runs_and_manifests();
    suite.truncations();
    suite.releases();
    suite.nodes();
    suite.documents();
    suite.pages();
    suite.many_pieces();
    suite.losses();
}

struct Suite<'a> {
    backend: &'a dyn Backend,
    next: u128,
}

impl Suite<'_> {
    fn id(&mut self) -> Uuid {
        self.next += 1;
        Uuid::from_u128(self.next)
    }

    fn call(&self, call: Call) -> Answer {
        self.backend.call(call).expect("the database answers")
    }

    fn changed(&self, call: Call) -> u64 {
        match self.call(call) {
            Answer::Changed(count) => count,
            other => panic!("{other:?}"),
        }
    }

    /// Epoch, and last batch.
    fn end(&self, partition: u16) -> (Epoch, Position, Uuid) {
        match self.call(Call::Ends(vec![partition])) {
            Answer::Ends(ends) => (ends.ends[0].epoch, ends.ends[0].position(), ends.cluster),
            other => panic!("{other:?}"),
        }
    }

    fn claim(&mut self, partition: u16, seen: Epoch) -> Option<Owner> {
        let (claim, node) = (self.id(), self.id());
        match self.call(Call::Claim { partition, seen, least: 0, claim, node }) {
            Answer::Claimed(epoch) => epoch.map(|epoch| Owner { partition, epoch, claim }),
            other => panic!("{other:?}"),
        }
    }

    fn newest(&mut self, partition: u16) -> Owner {
        let seen = self.end(partition).0;
        self.claim(partition, seen).expect("nobody else claims")
    }

    fn part(&self, owner: Owner, after: Position, batches: &[&[u8]]) -> Part {
        let cluster = self.end(owner.partition).2;
        let mut last = after;
        let follow = |bytes: &&[u8]| {
            let sequence = last.sequence + 1;
            let chain = chain(cluster, owner.partition, sequence, last.chain, bytes);
            last = Position { sequence, chain };
            Batch { at: last, bytes: Arc::from(*bytes) }
        };
        Part { owner, after, batches: batches.iter().map(follow).collect() }
    }

    fn append(&self, parts: Vec<Part>) -> Vec<Appended> {
        match self.call(Call::Append(parts)) {
            Answer::Appended(answers) => answers,
            other => panic!("{other:?}"),
        }
    }

    fn one(&self, part: Part) -> Appended {
        self.append(vec![part]).remove(0)
    }

    fn rows(&self, partition: u16) -> Vec<(Sequence, Vec<u8>)> {
        match self.call(Call::Read { partition, from: 0, bytes: u64::MAX >> 2 }) {
            Answer::Rows(rows) => {
                rows.into_iter().map(|row| (row.at.sequence, row.bytes)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn appends(&mut self) {
        let (first, second) = (self.newest(0), self.newest(2));
        let (start, other) = (self.end(0).1, self.end(2).1);
        let big = vec![7; 300_000];
        let two = self.part(first, start, &[b"x", &big]);
        let one = self.part(second, other, &[b"z"]);
        let answers = self.append(vec![two.clone(), one]);
        assert_eq!(answers[0].inserted, [1, 2], "two partitions, three batches, one statement");
        assert_eq!(answers[1].inserted, [1]);
        assert!(answers.iter().all(|it| it.owned && it.follows && it.unsafe_setting.is_none()));
        let again = self.one(two.clone());
        assert!(again.owned && again.follows, "{again:?}");
        assert!(again.inserted.is_empty(), "the same again changes nothing");
        let last = self.end(0).1;
        assert_eq!(last, two.batches[1].at);
        let gap = Position { sequence: 3, chain: 9 };
        let refused = self.one(self.part(first, gap, &[b"x"]));
        assert!(refused.owned && !refused.follows && refused.inserted.is_empty(), "a gap");
        let wrong = Position { chain: last.chain ^ 1, ..last };
        let refused = self.one(self.part(first, wrong, &[b"x"]));
        assert!(!refused.follows && refused.inserted.is_empty(), "another history is refused");
        let question = self.one(self.part(first, last, &[]));
        assert!(question.owned && question.follows, "a question is an append of nothing");
        assert!(!self.one(self.part(first, wrong, &[])).follows, "also of another history");
        assert_eq!(self.rows(0), [(0, vec![]), (1, b"x".to_vec()), (2, big)]);
    }

    fn claims_and_appends(&mut self) {
        let (old, neighbour) = (self.newest(0), self.newest(2));
        assert!(self.claim(0, old.epoch - 1).is_none(), "a claim on what is over");
        let new = self.claim(0, old.epoch).expect("a claim on what is");
        assert_eq!(new.epoch, old.epoch + 1);
        let (last, other) = (self.end(0).1, self.end(2).1);
        let parts = vec![self.part(old, last, &[b"old"]), self.part(neighbour, other, &[b"n"])];
        let answers = self.append(parts);
        assert!(
            !answers[0].owned && answers[0].inserted.is_empty(),
            "the replaced one is left out"
        );
        assert_eq!(answers[1].inserted, [other.sequence + 1], "its neighbour's goes");
        let liar = Owner { epoch: new.epoch, ..old };
        assert!(!self.one(self.part(liar, last, &[b"old"])).owned, "the epoch is not enough");
        assert!(!self.one(self.part(old, last, &[])).owned, "nor is it confirmed");
        let other = self.end(2).1;
        let questions = [(old, last), (new, last), (neighbour, other)];
        let questions = questions.map(|(owner, after)| self.part(owner, after, &[])).to_vec();
        let owned: Vec<bool> = self.append(questions).iter().map(|it| it.owned).collect();
        assert_eq!(owned, [false, true, true], "a question tells who still owns");
        let Answer::Ends(ends) = self.call(Call::Ends(vec![2, 0, 2])) else { panic!("ends") };
        let mut found: Vec<_> =
            ends.ends.iter().map(|end| (end.partition, end.claim, end.position())).collect();
        found.sort_by_key(|(partition, ..)| *partition);
        let expected = [(0, Some(new.claim), last), (2, Some(neighbour.claim), other)];
        assert_eq!(found, expected, "every partition that was asked for, once");
        let parts = vec![self.part(old, last, &[b"old"]), self.part(new, last, &[b"new"])];
        let answers = self.append(parts);
        assert!(!answers[0].owned && answers[1].inserted == [last.sequence + 1]);
        let (claim, node) = (self.id(), self.id());
        let call = Call::Claim { partition: 0, seen: new.epoch, least: 77, claim, node };
        assert_eq!(self.call(call), Answer::Claimed(Some(77)), "at least as asked");
    }

    fn keep(&self, owner: Owner, run: u64, at: u64, bytes: &[u8]) -> Answer {
        self.call(Call::Keep { owner, piece: Piece { run, at, bytes: Arc::from(bytes) } })
    }

    fn runs_and_manifests(&mut self) {
        let (old, partition) = (self.newest(1), 1);
        let new = self.newest(1);
        let run = (u64::from(new.epoch) << 40) | 1;
        for (at, bytes) in [(0, vec![1; 1000]), (1000, vec![2; 500]), (1000, vec![3; 700])] {
            assert_eq!(self.keep(new, run, at, &bytes), Answer::Owned(true), "twice is once");
        }
        assert_eq!(self.keep(old, 9, 0, b"late"), Answer::Owned(false));
        let pieces = self.call(Call::Pieces { partition });
        assert_eq!(pieces, Answer::Pieces(vec![(run, 0, 1000), (run, 1000, 500)]));
        let fetched = self.call(Call::Fetch { partition, run, at: 1000 });
        assert_eq!(fetched, Answer::Bytes(Some(vec![2; 500])));
        assert_eq!(self.call(Call::Fetch { partition, run, at: 9 }), Answer::Bytes(None));
        let start = self.end(1).1;
        self.one(self.part(new, start, &[b"a", b"b"]));
        let version = match self.call(Call::Manifest { partition }) {
            Answer::Manifest { version, .. } => version,
            other => panic!("{other:?}"),
        };
        let swap = |owner, through, size| Call::Swap {
            owner,
            version,
            through,
            bytes: Arc::from(&b"manifest"[..]),
            runs: vec![run],
            size,
        };
        assert_eq!(self.changed(swap(new, 2, 1501)), 0, "bytes are missing");
        assert_eq!(self.changed(swap(old, 2, 1500)), 0, "by the replaced owner");
        assert_eq!(self.changed(swap(new, 3, 1500)), 0, "ahead of the journal");
        assert_eq!(self.changed(swap(new, 2, 1500)), 1);
        assert_eq!(self.changed(swap(new, 2, 1500)), 0, "twice");
        let expected =
            Answer::Manifest { version: version + 1, through: 2, bytes: b"manifest".to_vec() };
        assert_eq!(self.call(Call::Manifest { partition }), expected);
        let remove = |owner, version| self.changed(Call::Remove { owner, run, version });
        assert_eq!(remove(old, version), 0, "by the replaced owner");
        assert_eq!(remove(new, version + 2), 0, "of a manifest that the database has lost");
        assert_eq!(remove(new, version + 1), 2);
        assert_eq!(self.call(Call::Pieces { partition }), Answer::Pieces(vec![]));
    }

    /// After the swap above: batches 0 to 2, and a manifest through 2.
    fn truncations(&mut self) {
        let (partition, old) = (1, self.newest(1));
        let start = Position { sequence: 0, chain: 0 };
        let ghost = self.part(old, start, &[b"a"]);
        assert_eq!(self.changed(Call::Truncate { partition, from: 0, to: 64 }), 2);
        assert_eq!(self.call(Call::First { partition }), Answer::First(Some(2)), "through stays");
        assert!(self.one(ghost.clone()).inserted.is_empty(), "a deleted place stays empty");
        let last = self.end(1).1;
        let old = self.newest(1);
        assert!(!self.one(ghost).owned, "nor by an owner that was replaced");
        assert_eq!(self.one(self.part(old, last, &[b"c"])).inserted, [3]);
    }

    fn releases(&mut self) {
        let owner = self.newest(3);
        let last = self.end(3).1;
        let intended = Some(self.id());
        let stranger = Owner { claim: self.id(), ..owner };
        assert_eq!(self.changed(Call::Release { owner: stranger, intended }), 0);
        assert_eq!(self.changed(Call::Release { owner, intended }), 1);
        assert!(!self.one(self.part(owner, last, &[b"late"])).owned, "it was given up");
        let Answer::Seen(seen) = self.call(Call::Members) else { panic!("members") };
        let row = seen.partitions.iter().find(|row| row.partition == 3).expect("a row");
        assert_eq!((row.owner, row.intended, row.epoch), (None, intended, owner.epoch));
    }

    fn nodes(&mut self) {
        let (id, text) = (self.id(), |text: &str| text.to_owned());
        let node = Node { name: text("n"), address: text("a:1"), release: text("0"), feature: 1 };
        let (cluster, other) = (self.end(0).2, self.id());
        let register = |cluster| Call::Register { cluster, id, node: node.clone() };
        assert_eq!(self.changed(register(other)), 0, "it is a node of another cluster");
        assert_eq!(self.changed(register(cluster)), 1);
        let state = NodeState::Serving;
        let (_, last, _) = self.end(1);
        let known = vec![(1, last.sequence), (3, last.sequence + 1_000)];
        let beat = |told_ms| {
            let known = known.clone();
            self.call(Call::Heartbeat { id, state, told_ms, known })
        };
        let Answer::Heartbeat(Some(beaten)) = beat(5) else { panic!("a heartbeat") };
        assert_eq!(beaten.count, 1);
        let Answer::Ends(ends) = self.call(Call::Ends(vec![0, 1, 2, 3])) else { panic!("ends") };
        assert_eq!(beaten.lineage, ends.lineage);
        for end in ends.ends {
            let watched = beaten.watched.iter().find(|it| it.end.partition == end.partition);
            let watched = watched.expect("every partition");
            assert_eq!(watched.end, end);
            assert_eq!(watched.kept, Some(end.last).filter(|_| end.partition == 1));
        }
        assert!(matches!(beat(3), Answer::Heartbeat(Some(beaten)) if beaten.count == 2));
        let Answer::Seen(seen) = self.call(Call::Members) else { panic!("members") };
        let row = seen.nodes.iter().find(|row| row.id == id).expect("a row");
        assert_eq!((row.heartbeat, row.told_ms, row.state), (2, 5, Some(state)));
        assert_eq!(self.changed(Call::Forget { id, heartbeat: Some(1) }), 0, "it beats");
        assert_eq!(self.changed(Call::Forget { id, heartbeat: Some(2) }), 1);
        assert_eq!(self.changed(Call::Forget { id, heartbeat: None }), 0, "it is gone");
        assert_eq!(beat(9), Answer::Heartbeat(None), "its row is gone");
    }

    /// The journal of partition 2, page by page.
    fn pages(&mut self) {
        let (partition, owner) = (2, self.newest(2));
        let after = self.end(2).1;
        let batch = [7; 1000];
        self.one(self.part(owner, after, &[&batch, &batch, &batch]));
        let first = after.sequence + 1;
        let page = |from, bytes| match self.call(Call::Read { partition, from, bytes }) {
            Answer::Rows(rows) => rows.iter().map(|row| row.at.sequence).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(page(first, 1), [first], "at least one");
        assert_eq!(page(first, 1001), [first, first + 1], "until there are so many bytes");
        assert_eq!(page(first + 2, 1 << 20), [first + 2]);
        assert_eq!(page(first + 3, 1 << 20), [] as [Sequence; 0]);
    }

    /// A run of more pieces than one statement removes.
    fn many_pieces(&mut self) {
        let owner = self.newest(1);
        let run = (u64::from(owner.epoch) << 40) | 7;
        for at in 0..70 {
            assert_eq!(self.keep(owner, run, at, b"p"), Answer::Owned(true));
        }
        assert_eq!(self.changed(Call::Remove { owner, run, version: 0 }), 64);
        assert_eq!(self.changed(Call::Remove { owner, run, version: 0 }), 6);
        assert_eq!(self.changed(Call::Remove { owner, run, version: 0 }), 0);
    }

    /// The last: nobody owns anything after it.
    fn losses(&mut self) {
        let owner = self.newest(0);
        let (_, last, _) = self.end(0);
        let lineage = self.id();
        assert!(self.changed(Call::AcceptLoss { lineage }) >= 4, "every partition");
        assert_eq!(self.changed(Call::AcceptLoss { lineage }), 0, "twice is once");
        let Answer::Ends(ends) = self.call(Call::Ends(vec![0])) else { panic!("ends") };
        assert_eq!(ends.lineage, lineage);
        let end = ends.ends[0];
        assert_eq!((end.epoch, end.claim, end.owner), (owner.epoch + 65_536, None, None));
        assert!(!self.one(self.part(owner, last, &[b"late"])).owned, "every owner is fenced");
        assert_eq!(self.newest(0).epoch, end.epoch + 1);
    }

    fn documents(&mut self) {
        let name = || "tokens".to_owned();
        let replace = |version, bytes: &[u8]| {
            self.changed(Call::Replace { name: name(), version, bytes: Arc::from(bytes) })
        };
        assert_eq!(self.call(Call::Document { name: name() }), Answer::Document(vec![], 0));
        assert_eq!(replace(3, b"no"), 0, "there is none");
        assert_eq!((replace(0, b"1"), replace(0, b"no"), replace(1, b"2")), (1, 0, 1));
        assert_eq!(replace(1, b"no"), 0);
        assert_eq!(self.call(Call::Document { name: name() }), Answer::Document(b"2".to_vec(), 2));
    }
}

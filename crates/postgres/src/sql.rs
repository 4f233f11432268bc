//! The statements. Each is a transaction of its own: a client that is paused inside one would keep
//! its locks, and every successor out. A statement that arrived whole runs to its end without its
//! client. Isolation is READ COMMITTED.
//!
//! `safe` makes the commit synchronous, and lets the server warn of a wait for the standby that was
//! cancelled, whatever somebody left behind in a pooled session or set for the role.

use tokio_postgres::types::Type;

/// A statement and the types of its parameters, so that it need not be prepared.
#[derive(Debug)]
pub(crate) struct Sql {
    pub(crate) text: &'static str,
    pub(crate) types: &'static [Type],
}

macro_rules! safe {
    () => {
        "with safe as (select set_config('synchronous_commit',
           case current_setting('synchronous_commit')
             when 'remote_apply' then 'remote_apply' else 'on' end, true),
           set_config('client_min_messages', 'warning', true) as warns) "
    };
}

/// Rows: place, kind, number. Kind 0: owned, number 1 + 2 if fsync and full_page_writes are on.
/// Kind 1: the batch before is there. Kind 2: inserted, number is the sequence.
///
/// Only the ownership row is locked, and the batches stay out of the locked join, which would copy
/// them. They are one value and not an array of values: an array is copied once more as a whole,
/// into memory that the server has to get and give back for every statement.
pub(crate) const APPEND: Sql = Sql {
    text: concat!(
        safe!(),
        ", asked as (
           select * from unnest($1::int[], $2::bigint[], $3::uuid[], $4::bigint[], $5::bigint[])
             with ordinality as asked(partition, epoch, claim, after, chain, place)
         ), owned as (
           select asked.place from hapax.partition p join asked
             on p.number = asked.partition and p.epoch = asked.epoch and p.claim = asked.claim
           for share of p
         ), follows as (
           select asked.place, asked.partition, asked.epoch from owned join asked using (place)
           join hapax.journal j on j.partition = asked.partition
             and j.sequence = asked.after and j.chain = asked.chain
         ), inserted as (
           insert into hapax.journal (partition, sequence, epoch, chain, batch)
           select follows.partition, b.sequence, follows.epoch, b.chain,
             substring($11::bytea from b.start for b.length)
           from unnest($6::bigint[], $7::bigint[], $8::bigint[], $9::int[], $10::int[])
             as b(place, sequence, chain, start, length)
           join follows using (place), safe
           where current_setting('fsync') = 'on' and current_setting('full_page_writes') = 'on'
           on conflict do nothing
           returning partition, epoch, sequence
         )
         select place, 0, (case current_setting('fsync') when 'on' then 1 else 0 end
             + case current_setting('full_page_writes') when 'on' then 2 else 0 end)::bigint
           from owned, safe
         union all select place, 1, 0::bigint from follows
         union all select asked.place, 2, inserted.sequence from inserted join asked
           on asked.partition = inserted.partition and asked.epoch = inserted.epoch"
    ),
    types: &[
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
        Type::UUID_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT4_ARRAY,
        Type::INT4_ARRAY,
        Type::BYTEA,
    ],
};

pub(crate) const ENDS: Sql = Sql {
    text: "select c.id, c.lineage, p.number, p.epoch, p.claim, p.owner,
             coalesce(j.epoch, 0), coalesce(j.sequence, 0), coalesce(j.chain, 0)
           from hapax.cluster c, hapax.partition p
           left join lateral (select epoch, sequence, chain from hapax.journal
             where partition = p.number order by sequence desc limit 1) j on true
           where p.number = any($1)",
    types: &[Type::INT4_ARRAY],
};

/// On what was seen, so that of two who try one succeeds.
pub(crate) const CLAIM: Sql = Sql {
    text: concat!(
        safe!(),
        "update hapax.partition set epoch = greatest(epoch + 1, $3), claim = $4, owner = $5,
           intended = null from safe where number = $1 and epoch = $2 returning epoch"
    ),
    types: &[Type::INT4, Type::INT8, Type::INT8, Type::UUID, Type::UUID],
};

pub(crate) const RELEASE: Sql = Sql {
    text: concat!(
        safe!(),
        "update hapax.partition set owner = null, claim = null, intended = $4 from safe
         where number = $1 and epoch = $2 and claim = $3 returning number"
    ),
    types: &[Type::INT4, Type::INT8, Type::UUID, Type::UUID],
};

pub(crate) const READ: Sql = Sql {
    text: "select sequence, epoch, chain, batch from (
             select *, sum(octet_length(batch)) over (order by sequence) as total from (
               select * from hapax.journal where partition = $1 and sequence >= $2
               order by sequence limit 4096) page) page
           where total - octet_length(batch) < $3 order by sequence",
    types: &[Type::INT4, Type::INT8, Type::INT8],
};

pub(crate) const FIRST: Sql = Sql {
    text: "select sequence from hapax.journal where partition = $1 order by sequence limit 1",
    types: &[Type::INT4],
};

/// By anybody at any time; the row `through` stays, so that every append has one to follow.
pub(crate) const TRUNCATE: Sql = Sql {
    text: "with gone as (delete from hapax.journal
             where partition = $1 and sequence >= $2 and sequence < $3
               and sequence < (select through from hapax.manifest where partition = $1)
             returning 1) select count(*) from gone",
    types: &[Type::INT4, Type::INT8, Type::INT8],
};

pub(crate) const MANIFEST: Sql = Sql {
    text: "select version, through, bytes from hapax.manifest where partition = $1",
    types: &[Type::INT4],
};

/// Moves only for the owner, only where the journal has got so far, and only if every byte that it
/// names anew is there.
pub(crate) const SWAP: Sql = Sql {
    text: concat!(
        safe!(),
        ", owned as (select 1 from hapax.partition
             where number = $1 and epoch = $2 and claim = $3 for share)
         update hapax.manifest m set version = m.version + 1, through = $5, chain = j.chain,
           bytes = $6
         from owned, safe, hapax.journal j
         where m.partition = $1 and m.version = $4 and j.partition = $1 and j.sequence = $5
           and (select coalesce(sum(octet_length(bytes)), 0) from hapax.chunk
                where partition = $1 and run = any($7)) = $8
         returning m.version"
    ),
    types: &[
        Type::INT4,
        Type::INT8,
        Type::UUID,
        Type::INT8,
        Type::INT8,
        Type::BYTEA,
        Type::INT8_ARRAY,
        Type::INT8,
    ],
};

/// Need not be synced by itself: the swap's commit is behind it.
pub(crate) const KEEP: Sql = Sql {
    text: "with fast as (select set_config('synchronous_commit', 'off', true)),
           owned as (select 1 from hapax.partition
             where number = $1 and epoch = $2 and claim = $3),
           kept as (insert into hapax.chunk select $1, $4, $5, $6 from fast, owned
             on conflict do nothing)
           select count(*) from owned",
    types: &[Type::INT4, Type::INT8, Type::UUID, Type::INT8, Type::INT8, Type::BYTEA],
};

pub(crate) const PIECES: Sql = Sql {
    text: "select run, at, octet_length(bytes)::bigint from hapax.chunk where partition = $1
           order by run, at",
    types: &[Type::INT4],
};

pub(crate) const FETCH: Sql = Sql {
    text: "select bytes from hapax.chunk where partition = $1 and run = $2 and at = $3",
    types: &[Type::INT4, Type::INT8, Type::INT8],
};

pub(crate) const REMOVE: Sql = Sql {
    text: "with gone as (delete from hapax.chunk where partition = $1 and run = $4 and at in (
               select at from hapax.chunk where partition = $1 and run = $4 order by at limit 64)
             and exists (select 1 from hapax.partition
               where number = $1 and epoch = $2 and claim = $3)
             and exists (select 1 from hapax.manifest where partition = $1 and version >= $5)
             returning 1) select count(*) from gone",
    types: &[Type::INT4, Type::INT8, Type::UUID, Type::INT8, Type::INT8],
};

/// Waits for no standby, as with [`FORGET`]: a node that finds its row gone enters another one.
pub(crate) const REGISTER: Sql = Sql {
    text: "with fast as (select set_config('synchronous_commit', 'off', true))
           insert into hapax.node (id, name, address, release, feature, state)
           select $1, $2, $3, $4, $5, 1 from fast
             where exists (select 1 from hapax.cluster where id = $6)
           on conflict do nothing returning feature",
    types: &[Type::UUID, Type::TEXT, Type::TEXT, Type::TEXT, Type::INT4, Type::UUID],
};

/// Also brings the database's clock, whether anything that is shared changed, and how far every
/// partition is: one row for each, by index look-ups. All of it in one statement and synchronous:
/// what it sees was committed before it, so that its own commit proves it.
pub(crate) const HEARTBEAT: Sql = Sql {
    text: concat!(
        safe!(),
        ", beaten as (
           update hapax.node set heartbeat = heartbeat + 1, state = $2,
             told = greatest(told, $3)
           from safe where id = $1
           returning heartbeat, (extract(epoch from clock_timestamp()) * 1000)::bigint as at
         ), known as (select * from unnest($4::int[], $5::bigint[]) as known(partition, sequence))
         select b.heartbeat, b.at, c.catalog, c.lineage, p.number, p.epoch, p.claim, p.owner,
           coalesce(j.epoch, 0), coalesce(j.sequence, 0), coalesce(j.chain, 0),
           k.epoch, k.sequence, k.chain
         from beaten b, hapax.cluster c, hapax.partition p
         left join lateral (select epoch, sequence, chain from hapax.journal
           where partition = p.number order by sequence desc limit 1) j on true
         left join known on known.partition = p.number
         left join lateral (select epoch, sequence, chain from hapax.journal
           where partition = known.partition and sequence = known.sequence limit 1) k on true"
    ),
    types: &[Type::UUID, Type::INT2, Type::INT8, Type::INT4_ARRAY, Type::INT8_ARRAY],
};

pub(crate) const NODES: Sql = Sql {
    text: "select id, name, address, release, feature, state, heartbeat, told from hapax.node
           order by name, id",
    types: &[],
};

pub(crate) const OWNERS: Sql = Sql {
    text: "select number, epoch, owner, intended from hapax.partition order by number",
    types: &[],
};

pub(crate) const FORGET: Sql = Sql {
    text: "with fast as (select set_config('synchronous_commit', 'off', true))
           delete from hapax.node using fast
           where id = $1 and ($2 < 0 or heartbeat = $2) returning id",
    types: &[Type::UUID, Type::INT8],
};

pub(crate) const DOCUMENT: Sql =
    Sql { text: "select bytes, version from hapax.document where name = $1", types: &[Type::TEXT] };

/// Version 0 is that of a document that is not there.
pub(crate) const REPLACE: Sql = Sql {
    text: concat!(
        safe!(),
        ", replaced as (
           insert into hapax.document as d (name, version, bytes) select $1, 1, $3 from safe
             where $2 = 0 or exists (select 1 from hapax.document where name = $1)
           on conflict (name) do update set version = d.version + 1, bytes = excluded.bytes
             where d.version = $2
           returning version
         )
         update hapax.cluster set catalog = catalog + 1 from replaced
         where replaced.version = $2 + 1 returning catalog"
    ),
    types: &[Type::TEXT, Type::INT8, Type::BYTEA],
};

pub(crate) const ACCEPT_LOSS: Sql = Sql {
    text: concat!(
        safe!(),
        ", drawn as (update hapax.cluster set lineage = $1 from safe
             where lineage <> $1 returning 1)
         update hapax.partition set epoch = epoch + 65536, claim = null, owner = null,
           intended = null from drawn returning number"
    ),
    types: &[Type::UUID],
};

/// Makes a broker of the tables. Secrets are parameters: the text of a statement is seen by whoever
/// looks at the server's activity, and is logged with its errors.
pub(crate) const CREATE: Sql = Sql {
    text: "insert into hapax.cluster (format, feature, id, lineage, partitions, fingerprints,
             leases, links) values ($1, $2, $3, $4, $5, $6, $7, $8)",
    types: &[
        Type::INT4,
        Type::INT4,
        Type::UUID,
        Type::UUID,
        Type::INT4,
        Type::BYTEA,
        Type::BYTEA,
        Type::BYTEA,
    ],
};

/// Counts the mark of an import up, if it is still this one's: another import that watches it sees
/// that this one lives, and what follows is not done where another one took its place. Each is
/// synced, so that an import may go on after a crash of the database.
macro_rules! of_import {
    () => {
        "with safe as (select set_config('synchronous_commit',
           case current_setting('synchronous_commit')
             when 'remote_apply' then 'remote_apply' else 'on' end, true),
           set_config('client_min_messages', 'warning', true) as warns),
         mine as (update hapax.document set version = version + 1
           where name = 'import' and bytes = $1 returning 1)"
    };
}

pub(crate) const IMPORT_BEAT: Sql =
    Sql { text: concat!(of_import!(), " select count(*) from mine, safe"), types: &[Type::BYTEA] };

/// Where a partition begins: its owner's epoch, its manifest, and the row that the first batch
/// follows.
pub(crate) const IMPORT_PLACE: Sql = Sql {
    text: concat!(
        of_import!(),
        ", placed as (insert into hapax.partition (number, epoch, claim)
             select $2, $3, $4 from safe, mine on conflict do nothing),
           based as (insert into hapax.journal select $2, $6, $5, $7, ''
             from safe, mine on conflict do nothing),
           listed as (insert into hapax.manifest select $2, 1, $6, $7, $8
             from safe, mine on conflict do nothing)
         select count(*) from mine"
    ),
    types: &[
        Type::BYTEA,
        Type::INT4,
        Type::INT8,
        Type::UUID,
        Type::INT8,
        Type::INT8,
        Type::INT8,
        Type::BYTEA,
    ],
};

pub(crate) const IMPORT_PIECE: Sql = Sql {
    text: concat!(
        of_import!(),
        ", kept as (insert into hapax.chunk select $2, $3, $4, $5
             from safe, mine on conflict do nothing)
         select count(*) from mine"
    ),
    types: &[Type::BYTEA, Type::INT4, Type::INT8, Type::INT8, Type::BYTEA],
};

pub(crate) const IMPORT_BATCHES: Sql = Sql {
    text: concat!(
        of_import!(),
        ", kept as (insert into hapax.journal (partition, sequence, epoch, chain, batch)
             select $2, b.sequence, $3, b.chain, ($6::bytea[])[b.number]
             from safe, mine, unnest($4::bigint[], $5::bigint[])
               with ordinality as b(sequence, chain, number)
             on conflict do nothing)
         select count(*) from mine"
    ),
    types: &[
        Type::BYTEA,
        Type::INT4,
        Type::INT8,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::BYTEA_ARRAY,
    ],
};

pub(crate) const IMPORT_DOCUMENT: Sql = Sql {
    text: concat!(
        of_import!(),
        ", kept as (insert into hapax.document select $2, 1, $3
             from safe, mine on conflict do nothing)
         select count(*) from mine"
    ),
    types: &[Type::BYTEA, Type::TEXT, Type::BYTEA],
};

pub(crate) const IMPORT_EPOCH: Sql = Sql {
    text: "select p.epoch, m.version, m.through, m.chain, m.bytes
           from hapax.partition p join hapax.manifest m on m.partition = p.number
           where p.number = $1",
    types: &[Type::INT4],
};

/// Makes a broker of it: the only statement after which a node uses these tables.
pub(crate) const IMPORT_FINISH: Sql = Sql {
    text: concat!(
        safe!(),
        ", mine as (delete from hapax.document where name = 'import' and bytes = $1
             and current_setting('fsync') = 'on' and current_setting('full_page_writes') = 'on'
             returning 1)
         insert into hapax.cluster (format, feature, id, lineage, partitions, fingerprints, leases,
           links) select $2, $3, $4, $5, $6, $7, $8, $9 from safe, mine returning single"
    ),
    types: &[
        Type::BYTEA,
        Type::INT4,
        Type::INT4,
        Type::UUID,
        Type::UUID,
        Type::INT4,
        Type::BYTEA,
        Type::BYTEA,
        Type::BYTEA,
    ],
};

/// Whether it is a broker of this id. Its clean commit is behind that which made it one.
pub(crate) const IMPORT_PROVE: Sql = Sql {
    text: concat!(
        safe!(),
        "update hapax.cluster set catalog = catalog + 1 from safe where id = $1 returning 1"
    ),
    types: &[Type::UUID],
};

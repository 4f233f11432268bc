//! The place of a row in its table, `ctid`, which the library has no type for. While a row is
//! locked it stays there, so a worker may name it by its place: that saves looking it up.

use std::error::Error;

use bytes::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// The bytes as the server gives them: they are only given back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place([u8; 6]);

impl<'a> FromSql<'a> for Place {
    fn from_sql(_: &Type, bytes: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(bytes.try_into()?))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::TID
    }
}

impl ToSql for Place {
    fn to_sql(
        &self,
        _: &Type,
        bytes: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        bytes.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::TID
    }

    to_sql_checked!();
}

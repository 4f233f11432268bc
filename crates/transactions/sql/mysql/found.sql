-- Found: the effect is there, whatever the fence: roll back, and settle done with this result. (A
-- lease that was lost meanwhile gets lease_lost for that, which is fine.) LOCK IN SHARE MODE, since
-- a plain read may not see what was committed after your transaction began. No row: enter again.
SELECT fence, result, result_type FROM hapax_inbox
WHERE consumer = ? AND tenant = ? AND queue = ?
  AND message_key = ? AND message_group = ? AND generation = ?
LOCK IN SHARE MODE

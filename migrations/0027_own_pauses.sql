-- A tenant pauses and resumes its own targets. The API's role still writes no pause by itself: these two
-- functions write and delete the tenant's own rows, and nothing else. What operators have paused they leave
-- alone, whichever release the operator's process is of.

SET lock_timeout = '2s';

ALTER TABLE pauses ADD COLUMN of_tenant boolean NOT NULL DEFAULT false;

-- Whoever pauses over a tenant's own pause has it from then on.
CREATE FUNCTION take_over_pause() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    NEW.of_tenant := false;
    RETURN NEW;
END
$$;
CREATE TRIGGER pauses_by_operators_are_theirs
BEFORE UPDATE ON pauses FOR EACH ROW
WHEN (session_user = 'imagefleet_operator')
EXECUTE FUNCTION take_over_pause();

-- `paused`; or why not: `operators` have paused it, or the tenant has as many as it may (`full`).
CREATE FUNCTION pause_own_target(tenant text, target text, who text, why text, most bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    UPDATE public.pauses SET paused_by = who, reason = why
    WHERE pauses.scope = 'target' AND pauses.tenant_id = tenant AND pauses.name = target AND pauses.of_tenant;
    IF FOUND THEN
        RETURN 'paused';
    END IF;
    IF (
        SELECT count(*) FROM (
            SELECT FROM public.pauses
            WHERE pauses.scope = 'target' AND pauses.tenant_id = tenant AND pauses.of_tenant LIMIT most
        ) AS own
    ) >= most THEN
        RETURN 'full';
    END IF;
    INSERT INTO public.pauses (scope, tenant_id, name, paused_by, reason, of_tenant)
    VALUES ('target', tenant, target, who, why, true)
    ON CONFLICT DO NOTHING;
    RETURN CASE WHEN FOUND THEN 'paused' ELSE 'operators' END;
END
$$;

-- Its own, and what the failure of a job of its own has paused.
CREATE FUNCTION resume_own_target(tenant text, target text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    DELETE FROM public.pauses
    WHERE
        pauses.scope = 'target' AND pauses.tenant_id = tenant AND pauses.name = target
        AND (pauses.of_tenant OR pauses.paused_by = 'policy');
    RETURN FOUND;
END
$$;

REVOKE ALL ON FUNCTION pause_own_target(text, text, text, text, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION resume_own_target(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pause_own_target(text, text, text, text, bigint) TO imagefleet_api;
GRANT EXECUTE ON FUNCTION resume_own_target(text, text) TO imagefleet_api;
